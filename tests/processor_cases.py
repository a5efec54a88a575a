"""What the tests of processors share: transformers' own chain, and logits of all kinds."""

from __future__ import annotations

import math
from functools import cache

import torch
from hypothesis import strategies as st
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from model.processors import Processors

INF = math.inf
LARGEST = torch.finfo(torch.float32).max
NEUTRAL = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
}


@cache
def reference_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config)


def transformers_chain(sampling: bool, length: int, **knobs):
    """The processors that `generate` itself would build: their classes, in their order."""
    config = GenerationConfig(do_sample=sampling, **{**NEUTRAL, **knobs})
    return reference_model()._get_logits_processor(config, input_ids_seq_length=max(length, 1))


def theirs(row: torch.Tensor, context: list[int], sampling: bool = True, **knobs) -> torch.Tensor:
    scores = row[None].clone()
    ids = torch.tensor([context], dtype=torch.long)
    return transformers_chain(sampling, len(context), **knobs)(ids, scores)[0]


def ours(row: torch.Tensor, context: list[int], sampling: bool = True, **knobs) -> torch.Tensor:
    before = row.clone()
    result = Processors.of(sampling=sampling, **knobs)(row[None], [context])
    assert torch.equal(row, before), "the input was changed in place"
    return result[0]


def bits(row: torch.Tensor) -> torch.Tensor:
    return row.contiguous().view(torch.int32)


def same_but_for_ties(mine: torch.Tensor, other: torch.Tensor, row: torch.Tensor) -> None:
    """Bit by bit the same; where top-p cut between equal scores, as many of them, smaller ids."""
    if torch.equal(bits(mine), bits(other)):
        return
    for score in row[bits(mine) != bits(other)].unique():
        tied = row == score
        kept = mine[tied] > -INF
        assert kept.sum() == (other[tied] > -INF).sum()
        assert kept.tolist() == sorted(kept.tolist(), reverse=True), "the smaller ids stay"
        assert (
            mine[tied][kept].unique().tolist() == other[tied][other[tied] > -INF].unique().tolist()
        )


def check_parity(row: torch.Tensor, context: list[int], sampling: bool = True, **knobs) -> None:
    mine = ours(row, context, sampling, **knobs)
    assert not mine.isnan().any()
    assert not (mine == INF).any()
    assert (mine > -INF).any()
    other = row[None].clone()
    ids = torch.tensor([context], dtype=torch.long)
    penalized = row
    for step in transformers_chain(sampling, len(context), **knobs):
        other = step(ids, other)
        if other.isnan().any() or (other == INF).any() or not (other > -INF).any():
            return  # transformers has no answer here; ours is held by tests of its own
        if type(step).__name__ in ("RepetitionPenaltyLogitsProcessor", "TemperatureLogitsWarper"):
            penalized = other[0]  # equal scores are told at what top-p sees
    same_but_for_ties(mine, other[0], penalized)


ordinary = st.floats(-30, 30, width=32)
hostile = st.sampled_from([0.0, -0.0, 1.0, 1.0, -1e4, 1e4, 1e30, -1e30, LARGEST, -LARGEST, 1e-40])
scores = st.one_of(
    ordinary,
    hostile,
    st.just(-INF),
    st.integers(-3, 3).map(float),  # many exact ties
)
rows = (
    st.lists(scores, min_size=1, max_size=40)
    .filter(lambda values: any(value > -INF for value in values))
    .map(lambda values: torch.tensor(values, dtype=torch.float32))
)
probability = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-9, 0.5, 0.9, 1 - 1e-9, 1.0]))
knobs = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.one_of(st.floats(0.1, 5), st.sampled_from([1.0, 1.2, 1e-3, 1e3])),
        "no_repeat_ngram_size": st.integers(0, 4),
        "temperature": st.one_of(st.floats(1e-3, 100), st.sampled_from([1e-30, 0.5, 1.0, 1e30])),
        "top_k": st.one_of(st.integers(0, 60), st.just(10**6)),
        "top_p": probability,
        "min_p": probability,
        "typical_p": probability.filter(lambda mass: mass > 0),
    },
)
