"""transformers is the reference: same tokens as `model.generate`, same numbers at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from engine_cases import same_step
from tiny_models import ARCHITECTURES, VOCAB, WINDOW

from model import Engine, Greedy, Request, Result, Sampling, Step
from model.kv_cache import CHUNK

PROMPT = "The capital of France is"
# Both sides compute in fp32, but one runs the whole prefix at once and the other token by token.
LOGITS = {"rtol": 1e-4, "atol": 1e-4}
PROBS = {"rtol": 1e-3, "atol": 1e-6}

GREEDY = {
    "plain": {},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "encouraged repetition": {"repetition_penalty": 0.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "both": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
}
SAMPLED = {
    "neutral": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 12},
    "top_k above the vocabulary": {"top_k": 10 * VOCAB},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.7},
    "penalties": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
    "everything": {
        "temperature": 0.9,
        "top_k": 100,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.9,
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
    },
}


def prompt_of(length: int) -> list[int]:
    """Some tokens without much rhyme."""
    return [(17 * i + i * i) % VOCAB for i in range(length)]


def steps_of(result: Result) -> list[Step]:
    return [event for event in result.events if isinstance(event, Step)]


def reference(
    model: Any, ids: Sequence[int], new: int, ends: Sequence[int] = (), **settings: Any
) -> Any:
    """`model.generate` on one prompt, with everything it can report."""
    row = torch.tensor([list(ids)])
    return model.generate(
        row,
        attention_mask=torch.ones_like(row),
        max_new_tokens=new,
        eos_token_id=list(ends) or None,
        pad_token_id=0,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **settings,
    )


def new_tokens(output: Any, ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(output.sequences[0, len(ids) :].tolist())


@cache
def engine_of(architecture: str, *ends: int) -> Engine:
    return tiny_models.engine(architecture, ends=ends)


@pytest.fixture(autouse=True, scope="module")
def _closed() -> Iterator[None]:
    yield
    engine_of.cache_clear()


def decoded(architecture: str, ids: Sequence[int], new: int, **options: Any) -> Result:
    return engine_of(architecture).generate(
        Request(token_ids=ids, max_new_tokens=new, **({"strategy": Greedy()} | options))
    )


# greedy: the very tokens


@pytest.mark.parametrize("settings", GREEDY.values(), ids=GREEDY)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_writes_what_generate_writes(architecture: str, settings: dict) -> None:
    ids = engine_of(architecture).tokenize(Request(prompt=PROMPT))
    wanted = reference(tiny_models.model(architecture), ids, 30, do_sample=False, **settings)
    made = decoded(architecture, ids, 30, strategy=Greedy(**settings))
    assert made.token_ids == new_tokens(wanted, ids)
    assert made.finish_reason == "length"


@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 60])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prompts_of_any_length(architecture: str, length: int) -> None:
    ids = prompt_of(length)
    wanted = reference(tiny_models.model(architecture), ids, 5, do_sample=False)
    assert decoded(architecture, ids, 5).token_ids == new_tokens(wanted, ids)


@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
def test_runs_far_past_the_sliding_window(architecture: str) -> None:
    ids, new = prompt_of(7), 6 * WINDOW
    wanted = reference(tiny_models.model(architecture), ids, new, do_sample=False)
    assert decoded(architecture, ids, new).token_ids == new_tokens(wanted, ids)


def test_the_sliding_window_matters() -> None:
    """Mistral's weights here are Llama's: only beyond the window do they write different texts."""
    ids = prompt_of(7)
    slid, whole = decoded("mistral", ids, 3 * WINDOW), decoded("llama", ids, 3 * WINDOW)
    beyond = WINDOW - len(ids)
    assert slid.token_ids[:beyond] == whole.token_ids[:beyond]
    assert slid.token_ids != whole.token_ids


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ends_at_any_of_several_end_tokens(architecture: str) -> None:
    ids = prompt_of(9)
    free = decoded(architecture, ids, 24).token_ids
    ends = (free[9], free[14], VOCAB - 1)
    engine = engine_of(architecture, *ends)
    wanted = reference(tiny_models.model(architecture), ids, 24, ends, do_sample=False)
    made = engine.generate(Request(token_ids=ids, strategy=Greedy(), max_new_tokens=24))
    assert made.token_ids == new_tokens(wanted, ids)
    assert made.token_ids[-1] in ends
    assert made.finish_reason == "eos"
    ignoring = engine.generate(
        Request(token_ids=ids, strategy=Greedy(), max_new_tokens=24, ignore_eos=True)
    )
    assert ignoring.token_ids == free
    assert ignoring.finish_reason == "length"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_without_a_cache_the_same_tokens(architecture: str) -> None:
    for settings in ({"strategy": Greedy()}, {"strategy": Sampling(temperature=1.3, seed=5)}):
        ids = prompt_of(20)
        cached = decoded(architecture, ids, 2 * WINDOW, **settings)
        computed = decoded(architecture, ids, 2 * WINDOW, use_cache=False, **settings)
        assert cached.token_ids == computed.token_ids
        assert computed.events[-1].cache_bytes == 0 < cached.events[-1].cache_bytes
        for a, b in zip(steps_of(cached), steps_of(computed), strict=True):
            same_step(a, b)  # to the last bit


# every number of every step


def compare(step: Step, logits: np.ndarray, scores: np.ndarray) -> None:
    """A step that reports the whole vocabulary, against transformers' logits and scores."""
    candidates = sorted(step.candidates, key=lambda candidate: candidate.token_id)
    assert [candidate.token_id for candidate in candidates] == list(range(len(logits)))
    raw, final = (np.exp(s - s.max()) for s in (logits.astype(float), scores.astype(float)))
    raw, final = raw / raw.sum(), final / final.sum()
    np.testing.assert_allclose([c.logit for c in candidates], logits, **LOGITS)
    np.testing.assert_allclose([c.raw_prob for c in candidates], raw, **PROBS)
    np.testing.assert_allclose([c.final_prob for c in candidates], final, **PROBS)
    cut = [c.token_id for c in candidates if c.cut_by]
    assert cut == np.flatnonzero(scores == -math.inf).tolist()
    assert step.kept == len(logits) - len(cut)
    assert step.kept_prob == pytest.approx(raw[scores > -math.inf].sum(), rel=1e-4)
    assert step.raw_prob == pytest.approx(raw[step.token_id], rel=1e-3)
    assert step.final_prob == pytest.approx(final[step.token_id], rel=1e-3)
    mine = raw[step.token_id]
    above, not_below = raw > mine * (1 + 1e-4), raw > mine * (1 - 1e-4)
    assert 1 + np.count_nonzero(above) <= step.rank <= np.count_nonzero(not_below)
    assert step.entropy == pytest.approx(-(raw * np.log(raw)).sum(), rel=1e-4)
    left = final[final > 0]
    assert step.final_entropy == pytest.approx(-(left * np.log(left)).sum(), rel=1e-4, abs=1e-6)
    low, high = step.span
    assert low <= step.draw < high
    assert high - low == pytest.approx(final[step.token_id], rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("settings", SAMPLED.values(), ids=SAMPLED)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sampled_distributions_are_those_of_generate(architecture: str, settings: dict) -> None:
    """Our draw differs, so transformers gets our own tokens as its context at every step."""
    ids = prompt_of(6)
    neutral = {"top_k": 0, "top_p": 1.0, "temperature": 1.0}
    made = decoded(
        architecture, ids, 6, strategy=Sampling(seed=3, **settings), num_candidates=10**6
    )
    for step in steps_of(made):
        context = [*ids, *made.token_ids[: step.index]]
        model = tiny_models.model(architecture)
        wanted = reference(model, context, 1, do_sample=True, **(neutral | settings))
        compare(step, wanted.logits[0][0].numpy(), wanted.scores[0][0].numpy())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_distributions_are_those_of_generate(architecture: str) -> None:
    """Incremental on both sides, so every step of one call to generate can be compared."""
    ids, settings = prompt_of(6), {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}
    wanted = reference(tiny_models.model(architecture), ids, 20, do_sample=False, **settings)
    made = decoded(architecture, ids, 20, strategy=Greedy(**settings), num_candidates=VOCAB)
    for step, logits, scores in zip(steps_of(made), wanted.logits, wanted.scores, strict=True):
        by_id = {candidate.token_id: candidate for candidate in step.candidates}
        scores = torch.softmax(scores[0].double(), -1)
        for token_id, candidate in by_id.items():
            assert candidate.logit == pytest.approx(float(logits[0, token_id]), **_approx(LOGITS))
            assert candidate.final_prob == pytest.approx(float(scores[token_id]), **_approx(PROBS))
        assert step.draw is step.span is None


def _approx(tolerance: dict[str, float]) -> dict[str, float]:
    return {"rel": tolerance["rtol"], "abs": tolerance["atol"]}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_score_is_one_forward_pass(architecture: str) -> None:
    engine, text = engine_of(architecture), "the cat is on the mat " * 30
    ids = [tiny_models.tokenizer().bos_token_id, *engine.tokenize(Request(prompt=text))]
    with torch.inference_mode():
        logits = tiny_models.model(architecture)(torch.tensor([ids])).logits[0]
    wanted = logits.double().log_softmax(-1)
    steps = engine.score(text, num_candidates=5)
    assert [step.token_id for step in steps] == ids[1:]
    assert "".join(step.text for step in steps) == text
    for step in steps:
        row = wanted[step.index]
        assert math.log(step.raw_prob) == pytest.approx(float(row[step.token_id]), abs=1e-3)
        assert step.entropy == pytest.approx(float(-(row.exp() * row).sum()), rel=1e-3)
        # A near-tie may fall either way; anything else may not.
        assert float(row[step.choice]) == pytest.approx(float(row.max()), abs=1e-3)
        assert step.candidates[0].token_id == step.choice
    assert len(ids) > CHUNK


# precision


def test_bf16_runs_on_the_cpu_and_says_so(build) -> None:
    engine = build(precision="bf16")
    assert engine.status().precision == "bf16"
    made = engine.generate(Request(prompt=PROMPT, strategy=Sampling(seed=1), max_new_tokens=12))
    assert len(made.token_ids) == 12
    assert made.events[0].precision == "bf16"
    exact = engine_of("llama").score(PROMPT)
    for rounded, step in zip(engine.score(PROMPT), exact, strict=True):
        assert rounded.raw_prob == pytest.approx(step.raw_prob, rel=0.3, abs=1e-3)
        assert rounded.raw_prob != step.raw_prob
    half = engine.generate(Request(prompt=PROMPT, max_new_tokens=12)).events[-1].cache_bytes
    whole = engine_of("llama").generate(Request(prompt=PROMPT, max_new_tokens=12))
    assert half * 2 == whole.events[-1].cache_bytes


def test_the_reference_model_is_plain_transformers_in_fp32(build) -> None:
    engine = build(precision="bf16")
    reference_model = engine.reference_model()
    assert type(reference_model) is type(tiny_models.model("llama"))
    assert reference_model.dtype == torch.float32
    for name, weight in tiny_models.model("llama").state_dict().items():
        torch.testing.assert_close(reference_model.state_dict()[name], weight, rtol=0, atol=0)


def test_a_model_handed_in_is_not_changed(build) -> None:
    before = {k: v.clone() for k, v in tiny_models.model("llama").state_dict().items()}
    build(precision="bf16").generate(Request(prompt=PROMPT, max_new_tokens=3))
    for name, weight in tiny_models.model("llama").state_dict().items():
        assert torch.equal(weight, before[name])
        assert weight.dtype == torch.float32


# the default model


@pytest.fixture(scope="module")
def default() -> Iterator[Engine]:
    with Engine.load(precision="fp32", device="cpu") as engine:
        yield engine


@pytest.mark.default_model
@pytest.mark.parametrize("name", ["plain", "both"])
def test_default_model_greedy(default: Engine, name: str) -> None:
    settings = GREEDY[name]
    ids = default.tokenize(Request(prompt=PROMPT))
    wanted = reference(
        default.reference_model(), ids, 20, default.end_ids, do_sample=False, **settings
    )
    made = default.generate(Request(prompt=PROMPT, strategy=Greedy(**settings), max_new_tokens=20))
    assert made.token_ids == new_tokens(wanted, ids)


@pytest.mark.default_model
def test_default_model_writes_paris_and_ends_by_itself(default: Engine) -> None:
    made = default.generate(
        Request(prompt="What is the capital of France?", chat=True, strategy=Greedy())
    )
    assert "Paris" in made.text
    assert made.finish_reason == "eos"
    ids = default.tokenize(Request(prompt="What is the capital of France?", chat=True))
    wanted = reference(default.reference_model(), ids, 64, default.end_ids, do_sample=False)
    assert made.token_ids == new_tokens(wanted, ids)


@pytest.mark.default_model
@pytest.mark.parametrize("name", ["neutral", "everything"])
def test_default_model_distributions(default: Engine, name: str) -> None:
    ids = default.tokenize(Request(prompt=PROMPT))
    settings = SAMPLED[name]
    made = default.generate(
        Request(
            prompt=PROMPT,
            strategy=Sampling(seed=3, **settings),
            max_new_tokens=3,
            num_candidates=10**6,
            ignore_eos=True,
        )
    )
    neutral = {"top_k": 0, "top_p": 1.0, "temperature": 1.0}
    for step in steps_of(made):
        context = [*ids, *made.token_ids[: step.index]]
        wanted = reference(
            default.reference_model(), context, 1, do_sample=True, **(neutral | settings)
        )
        compare(step, wanted.logits[0][0].numpy(), wanted.scores[0][0].numpy())
