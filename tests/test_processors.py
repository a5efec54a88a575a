"""Processors equal transformers' own number for number, and are sane where it has no answer."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_cases import (
    INF,
    NEUTRAL,
    check_parity,
    knobs,
    ordinary,
    ours,
    rows,
    theirs,
    transformers_chain,
)

from model.errors import FieldError
from model.processors import NoRepeatNgram, Processors, RepetitionPenalty, Temperature
from model.scores import BadLogits
from model.truncation import MinP, TopK


@given(rows, st.data(), knobs, st.booleans())
@settings(max_examples=500, deadline=None)
def test_equals_transformers_on_random_and_hostile_logits(row, data, values, sampling):
    ids = st.integers(0, len(row) - 1)
    context = data.draw(st.lists(ids, max_size=12))
    check_parity(row, context, sampling, **values)


# the order and what is left out


def test_the_order_is_that_of_transformers():
    values = {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "temperature": 0.8,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.9,
    }
    words = {
        "RepetitionPenaltyLogitsProcessor": "repetition_penalty",
        "NoRepeatNGramLogitsProcessor": "no_repeat_ngram_size",
        "TemperatureLogitsWarper": "temperature",
        "TopKLogitsWarper": "top_k",
        "TopPLogitsWarper": "top_p",
        "MinPLogitsWarper": "min_p",
        "TypicalLogitsWarper": "typical_p",
    }
    built = [words[type(step).__name__] for step in transformers_chain(True, 3, **values)]
    assert [step.name for step in Processors.of(sampling=True, **values)] == built


def test_neutral_values_add_nothing():
    assert len(Processors.of(sampling=True)) == 0
    assert len(Processors.of(sampling=True, **NEUTRAL)) == 0
    row = torch.randn(1, 9)
    assert torch.equal(Processors.of(sampling=True)(row, [[1, 2]]), row)


@pytest.mark.parametrize("how", [{"sampling": False}, {"sampling": True, "temperature": 0.0}])
def test_without_sampling_only_penalty_and_ngrams_apply(how):
    values = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "top_k": 2, "top_p": 0.5}
    made = Processors.of(**{**values, "min_p": 0.5, "typical_p": 0.5, **how})
    assert [step.name for step in made] == ["repetition_penalty", "no_repeat_ngram_size"]


def test_a_compound_says_whether_it_cuts_and_whether_it_keeps_the_order():
    assert not Processors.of(sampling=True, temperature=0.5).cuts
    assert Processors.of(sampling=True, temperature=0.5, top_k=3).cuts
    assert Processors.of(sampling=True, temperature=0.5, top_k=3, top_p=0.5, min_p=0.1).keeps_order
    for value in ({"repetition_penalty": 2.0}, {"no_repeat_ngram_size": 2}, {"typical_p": 0.5}):
        assert not Processors.of(sampling=True, **value).keeps_order


def test_processors_compare_and_pickle():
    made = Processors.of(sampling=True, temperature=0.5, top_k=3, typical_p=0.9)
    assert pickle.loads(pickle.dumps(made)) == made
    assert made == Processors.of(sampling=True, temperature=0.5, top_k=3, typical_p=0.9)
    assert made != Processors.of(sampling=True, temperature=0.5, top_k=4, typical_p=0.9)


@pytest.mark.parametrize("one", ["list", "tuple", "numpy", "tensor", "array"])
def test_a_context_may_be_any_sequence_of_ids(one):
    from array import array

    ids = [3, 1, 3, 1]
    context = {
        "list": ids,
        "tuple": tuple(ids),
        "numpy": np.array(ids),
        "tensor": torch.tensor(ids),
        "array": array("q", ids),
    }[one]
    made = Processors.of(sampling=True, repetition_penalty=2.0, no_repeat_ngram_size=2)
    assert made(torch.ones(1, 5), [context])[0].tolist() == [1, 0.5, 1, -INF, 1]


def test_ids_without_a_logit_are_skipped():
    """Some models have more embeddings than logits; transformers skips those ids too."""
    row = torch.tensor([2.0, 1.0, 3.0])
    for context in ([2, 7, 2, 7], [9, 0], [7, 7, 7]):
        check_parity(row, context, repetition_penalty=1.5, no_repeat_ngram_size=2)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_row_does_not_depend_on_its_company(data):
    vocab = data.draw(st.integers(2, 30))
    several = data.draw(
        st.lists(st.lists(ordinary, min_size=vocab, max_size=vocab), min_size=1, max_size=4)
    )
    contexts = [data.draw(st.lists(st.integers(0, vocab - 1), max_size=9)) for _ in several]
    made = Processors.of(sampling=True, **data.draw(knobs))
    together = made(torch.tensor(several), contexts)
    for place, (row, context) in enumerate(zip(several, contexts, strict=True)):
        assert torch.equal(made(torch.tensor([row]), [context])[0], together[place])


def test_single_processors_take_rows_too():
    row = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]])
    assert Temperature(0.5)(row, [[], []]).tolist() == [[2, 6, 4], [10, 8, 12]]
    assert TopK(1)(row, [[], []]).tolist() == [[-INF, 3, -INF], [-INF, -INF, 6]]
    assert RepetitionPenalty(2.0)(row, [[1], []]).tolist() == [[1, 1.5, 2], [5, 4, 6]]
    assert NoRepeatNgram(1)(row, [[1], [0, 2]]).tolist() == [[1, -INF, 2], [-INF, 4, -INF]]
    assert MinP(1.0)(row, [[], []]).tolist() == [[-INF, 3, -INF], [-INF, -INF, 6]]


def test_half_precision_is_worked_on_as_float32():
    row = torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.bfloat16)
    result = Processors.of(sampling=True, temperature=0.3)(row, [[]])
    assert result.dtype == torch.float32
    assert torch.equal(result, row.float() / 0.3)


@pytest.mark.parametrize(("shape", "contexts"), [((4,), [[]]), ((2, 4), [[]]), ((1, 2, 4), [[]])])
def test_rows_and_contexts_must_match(shape, contexts):
    with pytest.raises(ValueError, match="one context a row"):
        Processors.of(sampling=True, top_k=2)(torch.zeros(shape), contexts)


# where transformers has no answer


def test_an_ngram_ban_on_everything_leaves_the_best_token():
    row = torch.tensor([0.5, 2.0, 1.0])
    assert theirs(row, [0, 1, 2], no_repeat_ngram_size=1).tolist() == [-INF] * 3
    assert ours(row, [0, 1, 2], no_repeat_ngram_size=1).tolist() == [-INF, 2.0, -INF]
    # "Best" is what the processor before left: the penalty has put token 2 ahead.
    result = ours(row, [1, 1, 0, 2, 1], repetition_penalty=4.0, no_repeat_ngram_size=1)
    assert result.tolist() == [-INF, 0.5, -INF]


def test_a_penalty_that_overflows_everything_leaves_the_best_token():
    row = torch.tensor([-3e38, -2e38, -INF])
    assert ours(row, [0, 1], repetition_penalty=5.0).tolist() == pytest.approx([-INF, -2e38, -INF])


def test_infinite_scores_share_all_the_mass():
    row = torch.tensor([INF, 1.0, INF, -INF])
    for values in ({"temperature": 0.5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.9}):
        assert theirs(row, [], **values).softmax(-1).isnan().any()
        result = ours(row, [], **values).softmax(-1)
        assert result.tolist() == [0.5, 0, 0.5, 0], values


@pytest.mark.parametrize("temperature", [1e-30, 1e-46, 5e-324])
def test_a_tiny_temperature_picks_the_best(temperature):
    row = torch.tensor([-2.0, 3.0, -INF, 1.0])
    result = ours(row, [], temperature=temperature)
    assert result.softmax(-1).tolist() == [0, 1, 0, 0]
    negative = ours(row - 10, [], temperature=temperature)
    assert negative.softmax(-1).tolist() == [0, 1, 0, 0]


def test_a_temperature_beyond_float32_makes_all_equal():
    row = torch.tensor([-2.0, 3.0, -INF, 1.0])
    assert ours(row, [], temperature=1e300).softmax(-1)[[0, 1, 3]].tolist() == pytest.approx(
        [1 / 3] * 3
    )


def test_top_p_keeps_the_smaller_of_equal_ids_and_as_many_as_transformers():
    row = torch.zeros(10)
    kept = ours(row, [], top_p=0.35) > -INF
    assert kept.tolist() == [True] * 4 + [False] * 6
    assert (theirs(row, [], top_p=0.35) > -INF).sum() == 4
    assert (ours(row, [], top_p=0.0) > -INF).tolist() == [True] + [False] * 9


def test_top_k_keeps_all_that_equal_the_last():
    row = torch.tensor([1.0, 5.0, 3.0, 3.0, 3.0, -0.0])
    assert ours(row, [], top_k=2).tolist() == [-INF, 5, 3, 3, 3, -INF]


@pytest.mark.parametrize(
    "row", [[math.nan, 1.0], [INF, math.nan], [-INF, -INF], [INF, -INF], [INF, INF]]
)
@pytest.mark.parametrize("values", [{}, {"temperature": 0.5}, {"top_k": 1, "top_p": 0.5}])
def test_rows_without_an_answer_are_refused(row, values):
    with pytest.raises(BadLogits):
        ours(torch.tensor(row), [], **values)


# wrong settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", INF),
        ("repetition_penalty", 1e-60),
        ("no_repeat_ngram_size", -1),
        ("no_repeat_ngram_size", 2.5),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", INF),
        ("top_k", -1),
        ("top_k", True),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("top_p", "0.9"),
        ("min_p", 2.0),
        ("typical_p", 0.0),
        ("typical_p", 1.1),
    ],
)
@pytest.mark.parametrize("sampling", [True, False])
def test_a_wrong_value_names_its_field(field, value, sampling):
    with pytest.raises(FieldError) as error:
        Processors.of(sampling=sampling, **{field: value})
    assert error.value.field == field
