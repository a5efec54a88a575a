"""Measures of a text: against their definitions, written out plainly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model import TextMeasures


def measured(ids: list[int], raw: float = 0.5, final: float = 1.0) -> TextMeasures:
    measures = TextMeasures()
    for token_id in ids:
        measures.add(token_id, raw, final)
    return measures


def grams(ids: list[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_the_definitions(ids: list[int]) -> None:
    measures = measured(ids)
    for n in (1, 2):
        assert measures.distinct(n) == pytest.approx(len(set(grams(ids, n))) / len(ids))
    fours = grams(ids, 4)
    if fours:
        before = sum(four in fours[:i] for i, four in enumerate(fours))
        assert measures.repetition == pytest.approx(before / len(fours))
    else:
        assert measures.repetition is None


@given(st.lists(st.tuples(st.floats(1e-12, 1), st.floats(1e-12, 1)), min_size=1, max_size=40))
def test_the_mean_is_that_of_the_logarithms(probs: list[tuple[float, float]]) -> None:
    measures = TextMeasures()
    for raw, final in probs:
        measures.add(1, raw, final)
    raw, final = (math.fsum(map(math.log, side)) / len(probs) for side in zip(*probs, strict=True))
    assert measures.mean_logprob == pytest.approx(raw)
    assert measures.mean_final_logprob == pytest.approx(final)


def test_the_ends_of_the_scales() -> None:
    different, same = measured(list(range(20))), measured([7] * 20)
    assert (different.distinct(1), different.repetition) == (1.0, 0.0)
    assert (same.distinct(1), same.distinct(2)) == (1 / 20, 1 / 20)
    assert same.repetition == pytest.approx(16 / 17)  # only the first run of four is new


def test_nothing_is_claimed_of_an_empty_text() -> None:
    empty = TextMeasures()
    assert empty.tokens == 0
    told = (empty.mean_logprob, empty.mean_final_logprob, empty.distinct(1), empty.repetition)
    assert told == (None, None, None, None)


def test_a_token_without_probability_is_no_error() -> None:
    assert measured([1, 2], final=0.0).mean_final_logprob == -math.inf
