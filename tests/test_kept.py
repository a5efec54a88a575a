"""Kept caches, without a model: which one serves, for how much, and which are given up."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from engine_cases import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st

from model import kv_cache
from model.kept import Kept, common
from model.kv_cache import Parked

PER_TOKEN = 8  # bytes of what is held here


def parked(prompt: int, length: int, exact: int) -> Parked:
    """One head, keys and values of one number each."""
    return Parked(((torch.zeros(1, length, 1), torch.zeros(1, length, 1)),), length, prompt, exact)


def cut(held: Parked, length: int, prompt: int) -> Parked:
    """What a run that took over so many tokens of it would leave at once."""
    return parked(prompt, length, min(held.exact, length))


told = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=12),  # its tokens
    st.integers(1, 12),  # how many of them are its prompt
    st.integers(0, 12),  # how many were run in the usual way
    st.sampled_from("ab"),  # whose it was
)


def serves(held: tuple[Any, ...], wanted: list[int], prompt: int, family: str) -> int:
    """What the kept caches promise, in the plainest words."""
    ids, its_prompt, exact, owner = held
    alike = 0
    while alike < min(len(ids), len(wanted) - 1) and ids[alike] == wanted[alike]:
        alike += 1
    alike = alike if owner in family else min(alike, exact)
    if its_prompt == prompt and alike >= prompt:
        return alike
    return min(alike, its_prompt, prompt) // 3 * 3


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=EXACT)
@given(st.lists(told, max_size=8), st.lists(told, min_size=1, max_size=4))
def test_the_kept_cache_that_serves_for_most_is_taken(
    short_chunks: None, helds: list[Any], asks: list[Any]
) -> None:
    """However they are found, and although those that add nothing are not kept."""
    kept, there = Kept(), []
    for ids, prompt, exact, owner in helds:
        prompt, exact = min(prompt, len(ids)), min(exact, len(ids))
        kept.put(ids, parked(prompt, len(ids), exact), owner)
        there.append((ids, prompt, exact, owner))
        assert kept.nbytes == sum(PER_TOKEN * held.parked.length for held in kept._held)
    for wanted, prompt, _, family in asks:
        prompt = min(prompt, len(wanted))
        best = max((serves(held, wanted, prompt, family) for held in there), default=0)
        found = kept.take(wanted, prompt, (family,))
        assert (found[1] if found else 0) == best
        assert kept.nbytes == sum(PER_TOKEN * held.parked.length for held in kept._held)
        if found:  # back, as after its run
            back = cut(*found, prompt)
            kept.put(wanted, back, family)
            there.append((wanted[:best], prompt, back.exact, family))
    most = 16 * PER_TOKEN
    kept.shrink(most)
    assert kept.nbytes <= most
    kept.shrink(0)
    assert kept.nbytes == len(kept) == len(kept._openings) == 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_cache_that_is_the_beginning_of_another_is_not_kept_beside_it(order: int) -> None:
    kept = Kept()
    for ids in [[1, 2, 3], [1, 2, 3, 4, 5]][::order]:
        kept.put(ids, parked(2, len(ids), len(ids)))
    assert len(kept) == 1
    assert kept.take([1, 2, 3, 4, 5, 6], 2)[1] == 5
    assert len(kept) == 0  # handed over whole
    for ids, prompt, exact in [([1, 2, 3], 2, 3), ([1, 2, 3, 4], 3, 4), ([1, 2, 3, 4], 2, 2)]:
        kept.put(ids, parked(prompt, len(ids), exact))
    assert len(kept) == 3  # after another prompt, and one that was run in another way


def test_what_goes_on_differently_stays_for_others() -> None:
    kept = Kept()
    kept.put([1, 2, 3, 4], parked(2, 4, 4))
    for _ in range(2):
        assert kept.take([1, 2, 3, 9, 9], 2)[1] == 3
    assert kept.take([5, 6, 7], 2) is None
    assert kept.take([1, 2, 3, 4, 9], 2)[1] == 4
    assert kept.take([1, 2, 3, 4, 9], 2) is None


def test_those_used_least_lately_go_first() -> None:
    kept = Kept()
    for n in range(4):
        kept.put([n, n, n], parked(2, 3, 3))
    kept.take([0, 0, 7], 2)
    kept.shrink(2 * 3 * PER_TOKEN)
    served = [kept.take([n, n, 7], 2) is not None for n in range(4)]
    assert served == [True, False, False, True]


def test_among_many_caches_the_right_one_is_found_at_once() -> None:
    """A Python loop over all tokens of all of them would take more than 100 ms."""
    kept = Kept()
    for n in range(1000):
        kept.put([n] * 2000, parked(1000, 2000, 2000))
    began = time.perf_counter()
    assert kept.take([500] * 3000, 1000)[1] == 2000
    assert time.perf_counter() - began < 0.01


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_the_common_beginning(a: list[int], b: list[int]) -> None:
    length = common(a, b)
    assert a[:length] == b[:length]
    assert len(a) == length or len(b) == length or a[length] != b[length]


def test_a_prompt_of_less_than_a_chunk_serves_as_a_whole_or_not_at_all() -> None:
    kept = Kept()
    kept.put(range(kv_cache.CHUNK - 1), parked(kv_cache.CHUNK - 1, kv_cache.CHUNK - 1, 99))
    assert kept.take(range(kv_cache.CHUNK + 9), kv_cache.CHUNK + 9) is None
    assert kept.take(range(kv_cache.CHUNK), kv_cache.CHUNK - 1)[1] == kv_cache.CHUNK - 1
