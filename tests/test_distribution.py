"""The distribution of one step: conserved, ordered, and a ruler without gaps for the draw."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from model import distribution as module
from model.distribution import Distribution
from model.draw import uniform
from model.processors import Processors
from model.scores import BadLogits

INF = math.inf
LAST_U = 1 - 2**-53
NONE = Processors.of(sampling=True)


def offered(logits, context=(), **knobs) -> Distribution:
    return Distribution(
        torch.as_tensor(logits, dtype=torch.float32),
        Processors.of(sampling=True, **knobs),
        list(context),
    )


scores = st.one_of(
    st.floats(-30, 30, width=32),
    st.integers(-3, 3).map(float),
    st.sampled_from([0.0, -0.0, -INF, 1e4, -1e4, 1e30, -1e30]),
)
rows = (
    st.lists(scores, min_size=1, max_size=40)
    .filter(lambda values: any(value > -INF for value in values))
    .map(lambda values: torch.tensor(values, dtype=torch.float32))
)
knobs = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.floats(0.5, 3),
        "no_repeat_ngram_size": st.integers(0, 3),
        "temperature": st.floats(0.1, 10),
        "top_k": st.integers(0, 50),
        "top_p": st.floats(0, 1),
        "min_p": st.floats(0, 1),
        "typical_p": st.floats(0.01, 1),
    },
)


@st.composite
def distributions(draw) -> Distribution:
    row = draw(rows)
    context = draw(st.lists(st.integers(0, len(row) - 1), max_size=10))
    return offered(row, context, **draw(knobs))


# ── raw and final ────────────────────────────────────────────────────────────────────────────


@given(distributions())
@settings(max_examples=300, deadline=None)
def test_probabilities_are_those_of_torch_and_sum_to_one(made):
    ids = range(made.vocab_size)
    raw = torch.tensor([made.raw_prob(i) for i in ids], dtype=torch.float64)
    final = torch.tensor([made.final_prob(i) for i in ids], dtype=torch.float64)
    assert torch.allclose(raw, made.logits.double().softmax(-1), rtol=1e-12, atol=0)
    assert torch.allclose(final, made.final_scores.double().softmax(-1), rtol=1e-12, atol=0)
    assert raw.sum().item() == pytest.approx(1, abs=1e-12)
    assert final.sum().item() == pytest.approx(1, abs=1e-12)


@given(distributions())
@settings(max_examples=300, deadline=None)
def test_what_the_processors_leave_is_counted_and_weighed(made):
    left = [i for i in range(made.vocab_size) if made.final_scores[i] > -INF]
    assert made.kept == len(left) >= 1
    assert made.kept_prob == pytest.approx(sum(made.raw_prob(i) for i in left), abs=1e-12)
    assert all(made.final_prob(i) == 0 for i in range(made.vocab_size) if i not in left)


@given(distributions())
@settings(max_examples=200, deadline=None)
def test_entropies_are_in_nats(made):
    def entropy(scores: torch.Tensor) -> float:
        return float(torch.special.entr(scores.double().softmax(-1)).sum())

    assert made.entropy == pytest.approx(entropy(made.logits), abs=1e-9)
    assert made.final_entropy == pytest.approx(entropy(made.final_scores), abs=1e-9)
    assert made.entropy >= 0
    assert made.final_entropy >= 0


def test_equally_likely_tokens_have_the_entropy_of_their_number():
    made = offered(torch.zeros(64), top_k=0, top_p=0.5)
    assert math.exp(made.entropy) == pytest.approx(64)
    assert math.exp(made.final_entropy) == pytest.approx(32)
    assert (made.kept, made.kept_prob) == (32, pytest.approx(0.5))


def test_scores_are_those_of_the_processors():
    row = torch.tensor([3.0, 1.0, 2.0, 0.5])
    made = offered(row, [0, 0], repetition_penalty=2.0, temperature=0.5, top_k=2)
    expected = Processors.of(sampling=True, repetition_penalty=2.0, temperature=0.5, top_k=2)
    assert torch.equal(made.final_scores, expected(row[None], [[0, 0]])[0])
    assert torch.equal(made.logits, row)


def test_without_processors_final_is_raw_and_nothing_is_copied():
    row = torch.randn(100)
    made = Distribution(row, NONE, [1, 2])
    assert made.logits.data_ptr() == row.data_ptr()
    assert made.final_scores is made.logits
    assert made.kept == 100
    assert made.kept_prob == 1.0
    assert made.entropy == made.final_entropy


def test_any_float_type_and_any_view_will_do():
    row = torch.randn(50, dtype=torch.float32).bfloat16()
    for same in (row, row.double(), row.half().float(), torch.stack([row, -row], dim=1)[:, 0]):
        made = Distribution(same, NONE, [])
        assert torch.equal(made.logits, same.float())
        assert made.rank(made.favourite()) == 1
    grown = row.float().requires_grad_()
    assert not Distribution(grown, NONE, []).logits.requires_grad


def test_the_context_is_read_at_once():
    """A run appends to its list of tokens; what was offered before must not change with it."""
    context = [0]
    made = offered([1.0, 2.0], context, repetition_penalty=2.0)
    context.append(1)
    assert made.final_scores.tolist() == [0.5, 2.0]


def test_an_infinite_logit_takes_all_the_mass():
    made = offered([1.0, INF, 2.0])
    assert [made.raw_prob(i) for i in range(3)] == [0, 1, 0]
    assert made.at(LAST_U) == (1, 0.0, 1.0)
    assert math.isfinite(made.candidates(1)[0][1])


@pytest.mark.parametrize("row", [[math.nan, 1.0], [-INF, -INF], [INF, -INF], []])
def test_rows_without_an_answer_are_refused(row):
    with pytest.raises(BadLogits):
        offered(torch.tensor(row))


def test_a_batch_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        offered(torch.zeros(2, 3))


@pytest.mark.parametrize("token_id", [-1, 3])
def test_ids_outside_the_vocabulary_are_refused(token_id):
    made = offered([1.0, 2.0, 3.0])
    for ask in (made.raw_prob, made.final_prob, made.rank):
        with pytest.raises(IndexError):
            ask(token_id)
    with pytest.raises(IndexError):
        made.candidates(1, include=[token_id])


# ── the order ────────────────────────────────────────────────────────────────────────────────


@given(distributions())
@settings(max_examples=200, deadline=None)
def test_ranks_number_the_tokens_by_logit_then_id(made):
    order = sorted(range(made.vocab_size), key=lambda i: (-made.logits[i].item(), i))
    assert [made.rank(i) for i in order] == list(range(1, made.vocab_size + 1))
    best = sorted(range(made.vocab_size), key=lambda i: (-made.final_scores[i].item(), i))[0]
    assert made.favourite() == best == int(made.final_scores.argmax())
    assert [c[0] for c in made.candidates(made.vocab_size)] == order


@given(distributions(), st.integers(0, 50), st.data())
@settings(max_examples=300, deadline=None)
def test_candidates_are_the_likeliest_and_those_asked_for(made, count, data):
    include = data.draw(st.sets(st.integers(0, made.vocab_size - 1), max_size=3))
    found = made.candidates(count, include)
    ids = [c[0] for c in found]
    assert ids == sorted(ids, key=made.rank)
    assert len(set(ids)) == len(ids)
    assert {i for i in range(made.vocab_size) if made.rank(i) <= count} <= set(ids)
    assert include <= set(ids)
    left = [i for i in range(made.vocab_size) if made.final_scores[i] > -INF]
    left.sort(key=lambda i: (-made.final_scores[i].item(), i))
    extra = set(ids) - include - {i for i in ids if made.rank(i) <= count}
    assert extra <= set(left[:count])
    for token_id, logit, raw, final, _ in found:
        assert logit == made.logits[token_id].item()
        assert raw == made.raw_prob(token_id)
        assert final == made.final_prob(token_id)


def test_the_likeliest_of_the_final_distribution_are_shown_where_the_order_changes():
    row = torch.tensor([5.0, 4.0, 3.0, 2.0])
    assert [c[0] for c in offered(row).candidates(1)] == [0]
    assert [c[0] for c in offered(row, top_k=2).candidates(1)] == [0]
    assert [c[0] for c in offered(row, [0, 1], repetition_penalty=9.0).candidates(1)] == [0, 2]
    assert [c[0] for c in offered(row, [0], no_repeat_ngram_size=1).candidates(1)] == [0, 1]


def test_a_large_vocabulary_is_shown_whole():
    row = torch.randn(49_152, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    made = offered(row, top_p=0.9)
    found = made.candidates(10**6)
    order = np.lexsort((np.arange(row.numel()), -row.numpy()))
    assert [c[0] for c in found] == order.tolist()
    assert sum(c[2] for c in found) == pytest.approx(1)
    assert sum(c[3] for c in found) == pytest.approx(1)
    assert sum(c[4] is None for c in found) == made.kept


# ── who removed what ─────────────────────────────────────────────────────────────────────────


def test_each_removal_is_put_down_to_the_first_processor_that_did_it():
    row = torch.tensor([4.0, 3.9, 3.0, 2.9, 1.0, 0.0, -INF])
    made = offered(
        row, [1], no_repeat_ngram_size=1, temperature=0.9, top_k=4, top_p=0.95, min_p=0.34
    )
    cut_by = {c[0]: c[4] for c in made.candidates(7)}
    assert cut_by == {
        0: None,
        1: "no_repeat_ngram_size",
        2: "min_p",
        3: "min_p",
        4: "top_p",
        5: "top_k",
        6: None,  # the model's own −inf: nobody removed it
    }


@given(distributions())
@settings(max_examples=300, deadline=None)
def test_a_name_stands_exactly_by_the_tokens_that_were_removed(made):
    for token_id, logit, _, final, cut_by in made.candidates(made.vocab_size):
        removed = logit > -INF and made.final_scores[token_id] == -INF
        assert (cut_by is not None) == removed
        assert cut_by is None or final == 0


# ── the ruler ────────────────────────────────────────────────────────────────────────────────


def walk(made: Distribution) -> list[tuple[int, float, float]]:
    """All intervals, found by asking for the end of each one."""
    pieces, u = [], 0.0
    while u < 1:
        pieces.append(made.at(u))
        assert pieces[-1][2] > u
        u = pieces[-1][2]
    return pieces


def check_ruler(made: Distribution) -> None:
    pieces = walk(made)
    ids = [token_id for token_id, _, _ in pieces]
    assert pieces[0][1] == 0
    assert pieces[-1][2] == 1
    assert all(a[2] == b[1] for a, b in pairwise(pieces)), "no gap, no overlap"
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids, key=lambda i: (-made.final_scores[i].item(), i))
    assert ids[0] == made.favourite()
    for token_id, low, high in pieces:
        # A running sum of 50,000 equal terms is off by some 1e-12; the last end is set to 1.
        assert high - low == pytest.approx(made.final_prob(token_id), abs=1e-11)
    missing = set(range(made.vocab_size)) - set(ids)
    assert all(made.final_prob(i) < 1e-15 for i in missing)


@given(distributions(), st.floats(0, LAST_U))
@settings(max_examples=300, deadline=None)
def test_the_ruler_covers_the_unit_interval_likeliest_first(made, u):
    check_ruler(made)
    for place in (0.0, u, LAST_U):
        token_id, low, high = made.at(place)
        assert low <= place < high
        assert made.final_scores[token_id] > -INF


@pytest.mark.parametrize("u", [-0.1, 1.0, 1.5, math.nan, INF])
def test_a_number_that_is_not_on_the_ruler_is_refused(u):
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        offered([1.0, 2.0]).at(u)


def large(kind: str) -> torch.Tensor:
    made = torch.Generator().manual_seed(11)
    normal = torch.randn(49_152, generator=made)
    # Exactly equal scores on both sides of the 1024th place, and around it.
    ties = torch.full((49_152,), -2.0)
    ties[torch.randperm(49_152, generator=made)[:1000]] = 3.0
    few_left = normal * 3
    few_left[1024:] = -INF
    vanishing = torch.full((49_152,), -2000.0)
    vanishing[torch.randperm(49_152, generator=made)[:1500]] = 0.0
    vanishing[7] = 3.0
    return {
        "normal": normal * 3,
        "flat": normal * 0.01,
        "all equal": torch.zeros(49_152),
        "ties across the border": ties,
        "coarse": (normal * 3).bfloat16().float(),
        "as many as the head": few_left,
        "underflow": vanishing,
        "one": torch.where(torch.arange(49_152) == 77, 900.0, normal),
    }[kind]


KINDS = (
    "normal",
    "flat",
    "all equal",
    "ties across the border",
    "coarse",
    "as many as the head",
    "underflow",
    "one",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [{}, {"top_k": 1500}, {"typical_p": 0.7}], ids=str)
def test_a_short_piece_of_the_ruler_is_a_piece_of_the_whole(kind, values, monkeypatch):
    """The draw looks at the likeliest thousand first; the answer is the same without that."""
    row = large(kind)
    draws = [0.0, LAST_U, *(uniform(1, i) for i in range(60))]
    answers = []
    for head in (49_152, 1024, 64, 1):
        monkeypatch.setattr(module, "HEAD", head)
        answers.append([offered(row, **values).at(u) for u in draws])  # each with a fresh ruler
        kept = offered(row, **values)
        answers.append([kept.at(u) for u in draws])  # all on one that has grown
    assert all(answer == answers[0] for answer in answers)
    ids = np.lexsort((np.arange(row.numel()), -offered(row, **values).final_scores.numpy()))
    place = {int(token_id): i for i, token_id in enumerate(ids)}
    by_u = [place[token_id] for _, (token_id, _, _) in sorted(zip(draws, answers[0], strict=True))]
    assert by_u == sorted(by_u)


@pytest.mark.parametrize("kind", ["normal", "ties across the border", "underflow"])
def test_the_ruler_of_a_large_vocabulary_has_no_gap(kind):
    row = large(kind)
    made = offered(row, top_k=3000)
    check_ruler(made)


@pytest.mark.parametrize(
    "values",
    [{}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.8}, {"typical_p": 0.6, "min_p": 0.05}],
    ids=str,
)
def test_tokens_come_as_often_as_their_final_probability_says(values):
    """Over seeds at one place, and over places of one seed; chi-square on 20,000 draws each."""
    made = offered(torch.randn(12, generator=torch.Generator().manual_seed(2)) * 1.5, **values)
    left = [i for i in range(12) if made.final_prob(i) > 0]
    expected = np.array([made.final_prob(i) for i in left]) * 20_000
    for places in (((seed, 5) for seed in range(20_000)), ((5, place) for place in range(20_000))):
        counts = np.bincount([made.at(uniform(*place))[0] for place in places], minlength=12)
        assert counts.sum() == counts[left].sum(), "only tokens that are left are drawn"
        assert stats.chisquare(counts[left], expected / expected.sum() * 20_000).pvalue > 1e-4


def test_a_lone_token_is_always_drawn():
    made = offered([0.5], temperature=0.5, top_k=1, top_p=0.1)
    assert made.at(0.0) == made.at(LAST_U) == (0, 0.0, 1.0)
    assert (made.kept, made.kept_prob, made.entropy) == (1, 1.0, 0.0)


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="compares logits on a GPU with the same on the CPU, and there is no CUDA device here",
)
def test_logits_on_a_gpu_give_the_same_answers():
    row = large("normal")
    values = {"repetition_penalty": 1.2, "temperature": 0.8, "top_k": 50, "top_p": 0.9}
    here, there = (offered(x, [1, 2, 3], **values) for x in (row, row.cuda()))
    assert torch.equal(here.final_scores, there.final_scores)
    assert here.candidates(20) == there.candidates(20)
    assert here.at(0.7) == there.at(0.7)
    processors = Processors.of(sampling=True, **values)
    result = processors(row.cuda()[None], [[1, 2, 3]])
    assert result.is_cuda
    assert torch.equal(result[0].cpu(), here.final_scores)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_effects_add_up_to_what_is_left(data):
    """Removed tokens and their raw probability, processor by processor, leave `kept`."""
    size = data.draw(st.integers(3, 60))
    numbers = st.floats(-8, 8, width=32)
    logits = torch.tensor(data.draw(st.lists(numbers, min_size=size, max_size=size)))
    processors = Processors.of(
        sampling=True,
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
        temperature=data.draw(st.sampled_from([0.5, 1.0, 1.7])),
        top_k=data.draw(st.integers(0, size)),
        top_p=data.draw(st.sampled_from([0.3, 0.9, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.2])),
    )
    offered = Distribution(logits, processors, [0, 1])
    effects = offered.effects()
    assert [effect[0] for effect in effects] == [step.name for step in processors.steps]
    assert size - sum(effect[1] for effect in effects) == offered.kept
    assert 1 - sum(effect[2] for effect in effects) == pytest.approx(offered.kept_prob, abs=1e-9)
    for before, after in pairwise(effects):
        assert before[5] == after[4]
    if effects:
        assert effects[0][4] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-6)
        assert effects[-1][5] == pytest.approx(offered.final_prob(offered.favourite()), abs=1e-9)
