"""Short ways on large vocabularies: they end where transformers and the full sort do."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from processor_cases import INF, check_parity, rows

from model.scores import HEAD, likeliest
from model.truncation import TopP, TypicalP

SETTINGS = [
    {"temperature": 0.7},
    {"top_k": 50},
    {"top_k": 5000},
    {"top_k": 49_151},
    {"top_p": 0.95},
    {"top_p": 0.5},
    {"top_p": 0.0},
    {"top_p": 0.9999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"typical_p": 0.9},
    {"typical_p": 0.2},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {"temperature": 1.5, "top_p": 0.9, "typical_p": 0.9},
    {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "temperature": 0.8,
        "top_k": 3000,
        "top_p": 0.95,
        "min_p": 0.001,
        "typical_p": 0.95,
    },
]


@cache
def large_rows() -> dict[str, torch.Tensor]:
    """Rows of a real vocabulary's size, none a friend of the short way."""
    made = torch.Generator().manual_seed(5)
    vocab = 49_152
    normal = torch.randn(vocab, generator=made)
    spike = normal.clone()
    spike[31_000] = 1e4
    two = torch.full((vocab,), -0.3)  # one token with half of the mass, the rest all equal
    two[7] = math.log(vocab) - 0.3
    holes = normal * 4
    holes[torch.rand(vocab, generator=made) < 0.99] = -INF
    return {
        "flat": normal * 0.1,
        "model-like": normal * 5,
        "peaked": normal * 12,
        "one huge": spike,
        "half and the rest equal": two,
        "all equal": torch.zeros(vocab),
        "mostly -inf": holes,
        "sorted": (normal * 5).sort(descending=True).values,
        "bfloat16": (normal * 5).bfloat16().float(),
        "odd size": normal[:49_151] * 5,
    }


@pytest.mark.parametrize("kind", large_rows())
@pytest.mark.parametrize("values", SETTINGS, ids=lambda values: " ".join(values))
def test_equals_transformers_on_a_large_vocabulary(kind, values):
    row = large_rows()[kind]
    context = torch.randint(0, 300, (500,), generator=torch.Generator().manual_seed(1)).tolist()
    check_parity(row, context, **values)


@pytest.mark.parametrize("kind", large_rows())
@pytest.mark.parametrize("p", [0.0, 1e-6, 0.3, 0.5, 0.8, 0.95, 0.999, 1 - 1e-9])
def test_the_short_way_through_top_p_and_typical_p_ends_where_the_sort_does(kind, p):
    row = large_rows()[kind].numpy()
    top_p = TopP(p)
    _, count = top_p.kept(row)
    assert count in (None, top_p.kept_by_sort(row))
    if p > 0:
        typical = TypicalP(p)
        logprobs = torch.from_numpy(row).log_softmax(-1)
        entropy = -(logprobs * logprobs.exp()).nansum()
        distance = (-logprobs - entropy).abs().numpy()
        assert typical.limit(row, distance) in (None, typical.limit_by_sort(row, distance))


def test_the_short_way_is_taken_on_the_logits_of_a_model():
    made = torch.Generator().manual_seed(3)
    # A language model's logits: a broad bulk, and a few tokens far above it.
    short = 0
    for _ in range(50):
        row = torch.randn(49_152, generator=made) * 2
        row[:40] += torch.linspace(12, 6, 40)
        short += TopP(0.9).kept(row.numpy())[1] is not None
    assert short >= 45


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_borders_that_rounding_could_move_are_left_to_the_sort(seed):
    """p within a hair of a cumulative sum, on a vocabulary that takes the short way."""
    made = torch.Generator().manual_seed(seed)
    row = torch.randn(4 * HEAD, generator=made) * 6
    held = row.sort(descending=True).values.double().softmax(-1).cumsum(-1)
    place = int(torch.randint(0, 20, (1,), generator=made))
    for hair in (0.0, 1e-9, -1e-9, 1e-7, -1e-7, 1e-5, -1e-5):
        check_parity(row, [], top_p=min(max(held[place].item() + hair, 0.0), 1.0))


@given(
    st.one_of(
        rows.map(lambda row: row.numpy()),
        st.integers(0, 2**32 - 1).map(
            lambda seed: np.random.default_rng(seed).integers(-9, 9, 3001).astype(np.float32)
        ),
        st.integers(0, 2**32 - 1).map(
            lambda seed: np.random.default_rng(seed).normal(size=3001).astype(np.float32)
        ),
    ),
    st.integers(0, 4000),
)
@example(np.float32([0.0, -0.0, 0.0, -0.0]), 3)
@settings(max_examples=300, deadline=None)
def test_likeliest_is_the_beginning_of_the_full_order(row, count):
    order = np.lexsort((np.arange(row.size), -row))
    finite = order[row[order] > -INF]
    found = likeliest(row, count)
    assert found.tolist() == finite[: found.size].tolist()
    assert found.size >= min(count, finite.size)
    if 0 < found.size < finite.size:
        assert row[finite[found.size]] < row[found[-1]], "all that equal the last are there"
