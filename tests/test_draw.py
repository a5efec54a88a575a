"""The uniform number of a place: the same anywhere, uniform, independent of its neighbours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from model.draw import new_seed, uniform


@given(st.integers(), st.integers(), st.integers())
def test_lies_in_the_unit_interval_with_53_bits(seed, position, trial):
    u = uniform(seed, position, trial)
    assert 0 <= u < 1
    assert (u * 2**53).is_integer()
    assert u == uniform(seed, position, trial)


@pytest.mark.parametrize(
    ("place", "u"),
    [
        ((0, 0), 0.9806404073469595),
        ((7, 0), 0.43847977999484167),
        ((7, 1), 0.37789867400592414),
        ((7, 1, 1), 0.7503220890737601),
        ((4294967295, 1000), 0.37030262307331663),
    ],
)
def test_is_the_same_number_for_ever(place, u):
    """A link that carries a seed must show the same text next year and on another machine."""
    assert uniform(*place) == u


def test_does_not_depend_on_the_process():
    code = "from model.draw import uniform; print(*(uniform(7, i).hex() for i in range(5)))"
    root = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [uniform(7, i).hex() for i in range(5)]


def test_numpy_integers_are_integers_and_floats_are_refused():
    assert uniform(np.int64(7), np.int32(3)) == uniform(7, 3)
    with pytest.raises(TypeError):
        uniform(7.0, 3)


def test_places_do_not_run_into_each_other():
    places = [(1, 23), (12, 3), (123, 0), (1, 2, 3), (12, 30), (1, 230), (-1, 0), (2**64 - 1, 0)]
    assert len({uniform(*place) for place in places}) == len(places)


SIZE = 20_000
AXES = {
    "over seeds": lambda i: (i, 0),
    "over positions": lambda i: (7, i),
    "over trials": lambda i: (7, 3, i),
    "over a diagonal": lambda i: (i, i, i),
}


@pytest.mark.parametrize("axis", AXES)
def test_is_uniform_along_every_axis(axis):
    u = np.array([uniform(*AXES[axis](i)) for i in range(SIZE)])
    assert stats.kstest(u, "uniform").pvalue > 1e-4
    low_bits = (u * 2**53).astype(np.int64) & 0xFF
    assert stats.chisquare(np.bincount(low_bits, minlength=256)).pvalue > 1e-4


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("lag", [1, 2, 17])
def test_says_nothing_about_the_next_along_any_axis(axis, lag):
    u = np.array([uniform(*AXES[axis](i)) for i in range(SIZE)])
    cells = np.histogram2d(u[:-lag], u[lag:], bins=16, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue > 1e-4


def test_two_seeds_share_nothing():
    one, other = (np.array([uniform(seed, i) for i in range(SIZE)]) for seed in (7, 8))
    cells = np.histogram2d(one, other, bins=16, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue > 1e-4


def test_new_seeds_differ_and_are_short_enough_to_type():
    seeds = [new_seed() for _ in range(1000)]
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert len(set(seeds)) > 990
    assert max(seeds) > 2**31  # all 32 bits are used
