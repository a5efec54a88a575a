"""Complaints: every kind of mistake has a sentence in every language, with values it really has."""

from __future__ import annotations

import ast
import re

import pytest
from request_cases import ROOT, codes, sentences, strings


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
                    names = strings(node.args[3])
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
