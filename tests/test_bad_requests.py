"""Whatever somebody sends: a `FieldError` that names field, value and range, or a proper result."""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB

from model import Engine, FieldError, Gone, Greedy, Request, Run, Sampling
from model.errors import shown

ROOT = Path(__file__).parent.parent
PROMPT = "The capital of France is"
HUGE = 10**5000  # more digits than Python writes

SURROGATES = ["\ud800", "a\udfff", "ok \udc80\udc80", "\ud83d"]
TEXTS = [
    "",
    " ",
    "\n\t\r",
    "\0",
    "a\0b",
    "<script>alert(1)</script>",
    "$x^2$ and **bold** `code`",
    "שלום עולם, مرحبا بالعالم",
    "\u202eright to left\u202c",
    "e\u0301\u200b\ufeff",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "<|start|><|end|>",
    "\ufffd\uffff\U0010ffff",
]
LONG = {
    "spaces": " " * 100_000,
    "one word": "x" * 100_000,
    "words": "the cat is on the mat " * 4545,
    "emoji": "🎈" * 100_000,
    "Arabic": "مرحبا" * 20_000,
}
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**53, 2**63, 2**64, -(2**64), 10**400, HUGE, -HUGE]),
    st.floats(),
    st.floats(0, 1),
    st.sampled_from([1e-320, 1e-45, 1e308, -0.0, 1.5, 3.0]),
    st.text(st.characters(), max_size=5),
    st.sampled_from(TEXTS + SURROGATES),
    st.binary(max_size=3),
    st.lists(st.integers(-1, VOCAB) | st.text(max_size=2), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([np.nan, np.array([1, 2]), np.int64(3), np.float32(0.5), torch.tensor(1)]),
    st.sampled_from([np.True_, np.float16("inf"), torch.float32, np.dtype("f4"), torch.Size([])]),
    st.sampled_from([object(), Greedy, Sampling, Greedy(), Sampling(), ..., 1j, Request]),
)
QUICK = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@cache
def engine() -> Engine:
    return tiny_models.engine(threaded=False)


@cache
def a_run() -> Run:
    run = engine().stream(
        Request(prompt=PROMPT, strategy=Sampling(seed=1), max_new_tokens=4, num_candidates=2)
    )
    run.result()
    return run


@cache
def expected() -> tuple[int, ...]:
    return tiny_models.engine(threaded=False).generate(good()).token_ids


def good(**fields: Any) -> Request:
    return Request(**({"prompt": PROMPT, "strategy": Greedy(), "max_new_tokens": 2} | fields))


@pytest.fixture(autouse=True)
def still_works() -> Iterator[None]:
    """After every test here the engine serves the next person as if nothing had happened."""
    yield
    assert engine().generate(good()).token_ids == expected()
    assert engine().status().running == engine().status().waiting == 0


def named(error: FieldError, *fields: str) -> None:
    """A complaint is one sentence with the field, the value and what is allowed instead."""
    assert error.field in fields
    assert str(error) == f"{error.field} is {shown(error.value)}; allowed is {error.allowed}."
    assert error.allowed
    assert "\n" not in str(error)
    assert error.code in codes()
    assert set(places(error.code)) <= set(error.details)
    json.dumps(error.details)


def attempt(act: Callable[[], Any], *fields: str) -> Any:
    """The result, or None where the value was refused; anything else is a bug."""
    try:
        return act()
    except FieldError as error:
        named(error, *fields)
        return None


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


# questions about steps


@settings(max_examples=80, **QUICK)
@given(odd, odd, odd)
def test_reweigh(index: Any, strategy: Any, count: Any) -> None:
    try:
        step = a_run().reweigh(index, strategy, count)
    except Gone:
        assert isinstance(index, int)
        return
    except FieldError as error:
        named(error, "index", "strategy", "num_candidates")
        return
    assert 0 <= index < 4
    assert step.token_id == a_run().steps[index].token_id


@settings(max_examples=60, **QUICK)
@given(odd)
@example(HUGE)
@example(-1)
def test_each_argument_of_a_question_alone(value: Any) -> None:
    run = a_run()
    strategy = attempt(lambda: run.reweigh(1, value), "strategy")
    assert (strategy is not None) == (isinstance(value, (Greedy, Sampling)) or value is None)
    attempt(lambda: run.reweigh(1, Sampling(top_k=3), value), "num_candidates")
    attempt(lambda: run.redraw(1, 5, value), "strategy")
    times = value if isinstance(value, (int, float)) and value < 100 else 101_000
    times = value if not isinstance(value, (int, float)) else times
    counts = attempt(lambda: run.redraw(1, times), "times")
    assert counts is None or counts.total() == times
    for ask in (run.reweigh, lambda index: run.redraw(index, 5), run.step):
        try:
            attempt(lambda ask=ask: ask(value), "index")
        except Gone:
            assert isinstance(value, int)


@settings(max_examples=60, **QUICK)
@given(odd)
@example(HUGE)
def test_branch_and_fork(value: Any) -> None:
    run = a_run()
    before = list(run.steps)
    for act, fields in (
        (lambda: run.branch(value), ()),
        (lambda: run.branch(1, token_id=value), ("token_id",)),
        (lambda: run.branch(1, strategy=value), ("strategy",)),
        (lambda: run.branch(1, more=small(value)), ("max_new_tokens",)),
        (lambda: run.fork(1, value), ("token_id",)),
        (lambda: run.fork(value, 3), ()),
    ):
        try:
            new = attempt(act, *fields)
        except Gone:
            continue
        if new is not None:
            assert new.result().finish_reason == "length"
            assert all(isinstance(step.token_id, int) for step in new.steps)
    assert run.steps == before


def small(value: Any) -> Any:
    """Long runs are allowed, but not here."""
    return 3 if isinstance(value, (int, float)) and 3 < value <= 10**6 else value


@settings(max_examples=60, **QUICK)
@given(odd)
def test_handles_and_paces(value: Any) -> None:
    with pytest.raises(Gone):
        engine().run(value)
    run = engine().stream(good())
    attempt(lambda: run.pace(value), "pace")
    run.pace(None)
    assert len(run.result().token_ids) == 2


# the words for all this


@cache
def codes() -> set[str]:
    """Every code that a `FieldError` of the engine can have."""
    found = {"range"}
    for path in (ROOT / "model").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FieldError":
                found |= _strings(node.args[3]) if len(node.args) > 3 else set()
                found |= {
                    text
                    for keyword in node.keywords
                    if keyword.arg == "code"
                    for text in _strings(keyword.value)
                }
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "code":
                found |= _strings(node.value)
    return found


def test_iterators_that_never_end_are_no_stop_strings() -> None:
    with pytest.raises(FieldError):
        good(stop=itertools.repeat("x"))


def _strings(node: ast.expr) -> set[str]:
    return {
        leaf.value
        for leaf in ast.walk(node)
        if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
    }


@cache
def sentences(language: str) -> dict[str, str]:
    file = ROOT / "playground" / "locales" / f"{language}.json"
    return json.loads(file.read_text("utf-8"))["errors"]["allowed"]


def places(code: str) -> list[str]:
    return re.findall(r"{(\w+)}", sentences("en").get(code, ""))


def test_the_codes_are_found() -> None:
    assert {"number", "whole", "surrogate", "no_room", "strategy", "number_above"} <= codes()


@pytest.mark.parametrize("language", ["en", "tr"])
def test_every_kind_of_mistake_has_a_sentence(language: str) -> None:
    assert codes() <= set(sentences(language))
    assert all(sentences(language).values())


def _details() -> dict[str, set[str]]:
    """For every code the names of the plain values that come with it."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "model").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FieldError":
                given_ = {k.arg for k in node.keywords}
                if len(node.args) > 3 and None not in given_:  # not a rebuilt one
                    names = _strings(node.args[3])
                    if isinstance(node.args[3], ast.Name):  # a variable named `code`
                        names = {"number", "number_above"}
                    for name in names:
                        found[name] = found.get(name, given_) & given_
    return found


@pytest.mark.parametrize("language", ["en", "tr"])
def test_a_sentence_uses_only_values_that_come_with_the_error(language: str) -> None:
    details = _details()
    for code in codes() - {"range"}:
        used = set(re.findall(r"{(\w+)}", sentences(language)[code]))
        assert used <= details[code], code
