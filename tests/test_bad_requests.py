"""Whatever is asked for: a `FieldError` that names field, value and range, or a proper result."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from request_cases import HUGE, LONG, QUICK, SURROGATES, TEXTS, attempt, engine, good, named, odd

from model import FieldError, Greedy, Request, Sampling

pytestmark = pytest.mark.usefixtures("engine_still_works")


# settings


SAMPLING = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "seed",
]
INSIDE = {
    "temperature": lambda v: 0 <= v <= 100,
    "top_k": lambda v: 0 <= v < 2**31 and v == int(v),
    "top_p": lambda v: 0 <= v <= 1,
    "min_p": lambda v: 0 <= v <= 1,
    "typical_p": lambda v: 0 < v <= 1,
    "repetition_penalty": lambda v: 0.01 <= v <= 100,
    "no_repeat_ngram_size": lambda v: 0 <= v <= 1000 and v == int(v),
    "seed": lambda v: v is None or (0 <= v < 2**53 and v == int(v)),
}


def fits(name: str, value: Any) -> bool:
    if isinstance(value, (np.number, torch.Tensor)):  # a single number counts as Python's own
        value = value.item()
    if isinstance(value, bool) or not (value is None or isinstance(value, (int, float))):
        return False
    return (name == "seed" or value is not None) and value == value and INSIDE[name](value)


@pytest.mark.parametrize("name", SAMPLING)
@settings(max_examples=50, **QUICK)
@given(odd)
@example(HUGE)
def test_a_setting_is_taken_or_refused(name: str, value: Any) -> None:
    """Taken exactly where it lies in its range; then it decodes, too."""
    strategy = attempt(lambda: Sampling(**{name: value}), name)
    assert (strategy is not None) == fits(name, value)
    if strategy is not None:
        assert getattr(strategy, name) == value
        result = engine().generate(good(strategy=strategy))
        assert len(result.token_ids) == 2
        for step in result.events[1:-1]:
            assert 0 < step.final_prob <= 1
            assert step.kept >= 1
            assert sum(c.final_prob for c in step.candidates) <= 1 + 1e-9


@pytest.mark.parametrize("name", ["repetition_penalty", "no_repeat_ngram_size"])
@settings(max_examples=40, **QUICK)
@given(odd)
def test_greedy_checks_its_own(name: str, value: Any) -> None:
    strategy = attempt(lambda: Greedy(**{name: value}), name)
    assert (strategy is not None) == fits(name, value)
    if strategy is not None:
        assert len(engine().generate(good(strategy=strategy)).token_ids) == 2


def test_the_edges_of_all_settings_together() -> None:
    """The hardest that is allowed, all at once."""
    for extreme in (
        {"temperature": 1e-5, "top_k": 1, "top_p": 0, "min_p": 1, "typical_p": 1e-300},
        {"temperature": 100, "top_k": 2**31 - 1, "top_p": 1, "min_p": 0, "typical_p": 1},
        {"temperature": 5e-324, "repetition_penalty": 100, "no_repeat_ngram_size": 1},
        {"repetition_penalty": 0.01, "no_repeat_ngram_size": 1000, "temperature": 1e-5},
    ):
        for seed in (0, 2**53 - 1):
            result = engine().generate(good(strategy=Sampling(**extreme, seed=seed)))
            assert len(result.token_ids) == 2


# requests


FIELDS = [
    "prompt",
    "token_ids",
    "strategy",
    "max_new_tokens",
    "num_candidates",
    "stop",
    "ignore_eos",
    "chat",
    "system",
    "use_cache",
]


@pytest.mark.parametrize("name", FIELDS)
@settings(max_examples=80, **QUICK)
@given(odd)
@example(HUGE)
def test_a_field_is_taken_or_refused(name: str, value: Any) -> None:
    fields = {name: value}
    if name == "token_ids" and value is not None:
        fields["prompt"] = None
    if name == "max_new_tokens" and isinstance(value, (int, float)) and value > 10:
        fields["stop"] = [" ", "a", "e", "\ufffd"]  # a result, but soon
    allowed = {name, "prompt"} if name in ("prompt", "token_ids") else {name}
    request = attempt(lambda: good(**fields), *allowed)
    if request is None:
        return
    result = attempt(lambda: engine().generate(request), *allowed)
    if result is not None:
        assert result.finish_reason in ("length", "stop")
        assert 1 <= len(result.token_ids) <= request.max_new_tokens


@settings(max_examples=80, **QUICK)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, odd)))
def test_several_wrong_fields_at_once(fields: dict[str, Any]) -> None:
    if isinstance(fields.get("max_new_tokens"), (int, float)):
        fields["max_new_tokens"] = 3
    request = attempt(lambda: Request(**fields), *FIELDS)
    if request is not None:
        attempt(lambda: engine().generate(request), *FIELDS)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_odd_texts_are_texts(text: str) -> None:
    for fields in ({"prompt": text}, {"prompt": "x", "chat": True, "system": text}):
        result = engine().generate(good(**fields))
        assert len(result.token_ids) == 2
    started = engine().generate(good(prompt=text)).events[0]
    if "<|" not in text:  # special tokens are read as such, as transformers reads them
        assert "".join(started.prompt_texts) == text
    assert engine().generate(good(stop=[text] if text else ())).finish_reason in ("length", "stop")
    assert len(engine().score(text)) == len(started.prompt_ids) - (
        text[:9] == "<|start|>" or not text
    )


@pytest.mark.parametrize("text", SURROGATES, ids=ascii)
def test_half_characters_are_refused_with_their_place(text: str) -> None:
    for name in ("prompt", "system", "stop"):
        with pytest.raises(FieldError) as caught:
            good(**({name: text} | ({"chat": True} if name == "system" else {})))
        named(caught.value, name)
        assert caught.value.code == "surrogate"
        position = caught.value.details["position"]
        assert "\ud800" <= text[position - 1] <= "\udfff"
    with pytest.raises(FieldError):
        engine().score(text)


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_100_000_characters_say_how_many_tokens_fit(text: str) -> None:
    with pytest.raises(FieldError) as caught:
        engine().stream(good(prompt=text))
    named(caught.value, "prompt")
    tokens = len(tiny_models.tokenizer()(text)["input_ids"])
    assert caught.value.code == "no_room"
    assert caught.value.details == {"tokens": tokens, "room": tiny_models.CONTEXT - 1}
    assert f"at most {tiny_models.CONTEXT - 1} tokens, and it has {tokens}" in str(caught.value)
    with pytest.raises(FieldError):
        engine().score(text)
    assert len(str(caught.value)) < 200  # the text itself is not said again


def test_a_text_beyond_all_measure_is_not_even_read() -> None:
    for fields in ({"prompt": "x" * 500_001}, {"chat": True, "system": "x" * 500_001}):
        with pytest.raises(FieldError) as caught:
            good(**fields)
        assert caught.value.details == {"longest": 500_000, "length": 500_001}


def test_a_whole_prompt_that_just_fits() -> None:
    ids = [5] * (tiny_models.CONTEXT - 1)
    result = engine().generate(good(prompt=None, token_ids=ids))
    assert len(result.token_ids) == 1


def test_values_that_cannot_be_written_are_still_told() -> None:
    class Unspeakable:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    for value in (HUGE, Unspeakable()):
        with pytest.raises(FieldError, match=r"top_p is a .* that can't be written"):
            Sampling(top_p=value)


def test_iterators_that_never_end_are_no_stop_strings() -> None:
    with pytest.raises(FieldError):
        good(stop=itertools.repeat("x"))
