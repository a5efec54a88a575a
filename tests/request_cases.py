"""What the tests of bad requests share: odd values, an engine, and how a complaint must read."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tiny_models
import torch
from engine_cases import PROMPT
from hypothesis import HealthCheck
from hypothesis import strategies as st
from tiny_models import VOCAB

from model import Engine, FieldError, Greedy, Request, Run, Sampling
from model.errors import shown

ROOT = Path(__file__).parent.parent
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


def strings(node: ast.expr) -> set[str]:
    return {
        leaf.value
        for leaf in ast.walk(node)
        if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
    }


@cache
def codes() -> set[str]:
    """Every code that a `FieldError` of the engine can have."""
    found = {"range"}
    for path in (ROOT / "model").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FieldError":
                found |= strings(node.args[3]) if len(node.args) > 3 else set()
                found |= {
                    text
                    for keyword in node.keywords
                    if keyword.arg == "code"
                    for text in strings(keyword.value)
                }
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "code":
                found |= strings(node.value)
    return found


@cache
def sentences(language: str) -> dict[str, str]:
    file = ROOT / "playground" / "locales" / f"{language}.json"
    return json.loads(file.read_text("utf-8"))["errors"]["allowed"]


def places(code: str) -> list[str]:
    return re.findall(r"{(\w+)}", sentences("en").get(code, ""))


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
