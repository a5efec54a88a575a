"""The words of the page: both languages complete, every key used, Turkish as Turkish is written."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parent.parent / "playground"
LANGUAGES = ("en", "tr")
OWN = "examples."  # prompts to start from: every language has its own
# What the scripts read: their keys leave the section out.
SECTIONS = ("stage", "effects", "batching", "status")
# Placeholders that hold a word or a label and not a number.
WORDS = {"label", "choice", "name", "field", "value", "allowed", "model", "kind", "these", "list"}
WORDS |= {"least", "u"}


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"twice in one object: {twice}"
    return dict(pairs)


@cache
def words(language: str) -> dict[str, str]:
    """Dotted key to text."""
    text = (PAGE / "locales" / f"{language}.json").read_text("utf-8")

    def walk(node: Any, path: str) -> Iterator[tuple[str, str]]:
        if not isinstance(node, dict):
            yield path, node
            return
        for key, child in node.items():
            yield from walk(child, f"{path}.{key}" if path else key)

    return dict(walk(json.loads(text, object_pairs_hook=_no_duplicates), ""))


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"{(\w+)}", text))


def shared(language: str) -> dict[str, str]:
    return {key: text for key, text in words(language).items() if not key.startswith(OWN)}


# completeness


def test_both_languages_have_the_same_keys() -> None:
    assert set(shared("en")) == set(shared("tr"))


def test_every_language_has_prompts_to_start_from() -> None:
    for language in LANGUAGES:
        own = [text for key, text in words(language).items() if key.startswith(OWN)]
        assert len(set(own)) >= 3
        assert OWN + "first" in words(language)  # what the page opens with


@pytest.mark.parametrize("key", sorted(shared("en")))
def test_both_languages_say_the_same_values(key: str) -> None:
    assert placeholders(words("en")[key]) == placeholders(words("tr").get(key, ""))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_written_out(language: str) -> None:
    for key, text in words(language).items():
        assert isinstance(text, str), key
        assert text.strip() == text != "", key
        assert "  " not in text, key
        assert text.count("{") == text.count("}") == len(re.findall(r"{\w+}", text)), key


# use


def python_keys() -> Iterator[tuple[str, set[str] | None]]:
    """Keys in Python: the key, or a pattern of it, and the values given with it where known."""
    sections = "|".join({key.split(".")[0] for key in words("en")})
    looks = re.compile(rf"^({sections})\.(?!css$|json$)[\w.]+$")
    for path in PAGE.glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        said: dict[int, set[str]] = {}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", getattr(node.func, "id", "")) == "say"
            ):
                names = {keyword.arg for keyword in node.keywords}
                if None not in names:
                    said |= {id(argument): names for argument in node.args}
        parts = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in parts and looks.match(node.value):
                    yield re.escape(node.value), said.get(id(node))
            elif isinstance(node, ast.JoinedStr):
                first = node.values[0]
                if isinstance(first, ast.Constant) and re.match(rf"^({sections})\.", first.value):
                    yield (
                        "".join(
                            re.escape(part.value) if isinstance(part, ast.Constant) else r"\w+"
                            for part in node.values
                        ),
                        None,
                    )


STRING = r"\"([^\"\\\n]*)\"|'([^'\\\n]*)'|`([^`\\\n]*)`"


def script_keys() -> Iterator[tuple[str, str]]:
    """File and pattern of every key that a script looks up: the strings in `t(…)`."""
    for path in (PAGE / "static").glob("*.js"):
        text = path.read_text("utf-8")
        for call in re.finditer(r"(?<![\w.$])t\(", text):
            argument = _first_argument(text, call.end())
            argument = re.sub(rf"[=!]==\s*(?:{STRING})", "", argument)
            for found in re.finditer(STRING, argument):
                yield path.name, _pattern(next(part for part in found.groups() if part is not None))


def _first_argument(text: str, start: int) -> str:
    depth = 0
    for end in range(start, len(text)):
        char = text[end]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        if depth < 0 or (char == "," and depth == 0):
            return text[start:end]
    return text[start:]


def _pattern(literal: str) -> str:
    parts = re.split(r"\$\{[^}]*\}", literal)
    return r"[\w.]+".join(re.escape(part) for part in parts)


def in_sections(pattern: str) -> set[str]:
    """Full keys that a script's key means."""
    wanted = re.compile(rf"(?:{'|'.join(SECTIONS)})\.(?:{pattern})")
    return {key for key in words("en") if wanted.fullmatch(key)}


def test_every_key_that_python_names_exists() -> None:
    found = list(python_keys())
    assert len(found) > 30
    for pattern, _ in found:
        assert any(re.fullmatch(pattern, key) for key in words("en")), pattern


def test_every_value_that_a_text_needs_is_given() -> None:
    checked = 0
    for pattern, names in python_keys():
        if names is not None:
            for key in words("en"):
                if re.fullmatch(pattern, key):
                    assert placeholders(words("en")[key]) <= names, key
                    checked += 1
    assert checked > 5


def test_every_key_that_a_script_names_exists() -> None:
    found = list(script_keys())
    assert len(found) > 60
    for name, pattern in found:
        assert in_sections(pattern), f"{name}: {pattern}"


def test_no_key_is_unused() -> None:
    """As far as can be told: by its name in Python, in a script, or among a script's strings."""
    used = {
        key for pattern, _ in python_keys() for key in words("en") if re.fullmatch(pattern, key)
    }
    for _, pattern in script_keys():
        used |= in_sections(pattern)
    strings = {
        literal
        for path in (PAGE / "static").glob("*.js")
        for quote in STRING.split("|")  # each kind by itself, since templates hold strings
        for literal in re.findall(quote, path.read_text("utf-8"))
    }
    for key in words("en"):
        if key.partition(".")[2] in strings or key.startswith(OWN):
            used.add(key)
    assert sorted(set(words("en")) - used) == []


# how it is written


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_is_shouted(language: str) -> None:
    assert [key for key, text in words(language).items() if "!" in text] == []


def test_no_suffix_is_glued_to_a_value() -> None:
    """ "{count}lar" or "{x}'de" would be wrong after most numbers and names."""
    glued = re.compile(r"\}['’]?[^\W\d_]")
    assert [key for key, text in words("tr").items() if glued.search(text)] == []


def test_no_plural_follows_a_number() -> None:
    """ "5 tokenlar" is not Turkish."""
    for key, text in words("tr").items():
        for name, word in re.findall(r"{(\w+)} (\w+)", text):
            if name not in WORDS:
                assert not re.search(r"l[ae]r([ıi]n?|d[ae]n?|[ae])?$", word), (key, text)


def test_the_reader_is_addressed_politely() -> None:
    familiar = re.compile(r"\b(sen|senin|sana|seni|sende|senden)\b", re.IGNORECASE)
    assert [key for key, text in words("tr").items() if familiar.search(text)] == []


def test_one_word_has_one_spelling() -> None:
    """ "tokenler" beside "tokenlar" reads like two authors."""
    text = " ".join(re.sub(r"{\w+}", "", text) for text in shared("tr").values()).lower()
    endings = set(re.findall(r"\btoken([^\W\d_]+)", text))
    front = {ending for ending in endings if re.match(r"[^\Waıou]*$", ending)}
    assert front in (set(), endings), endings


def test_nothing_is_left_in_english() -> None:
    """Apart from the field's own terms, which both languages share."""
    same = {
        key
        for key, text in shared("tr").items()
        if text == words("en").get(key) and re.search(r"[^\W\d_]{4,}", re.sub(r"{\w+}", "", text))
    }
    terms = {"model", "token", "token_id", "typical_p"}
    assert [k for k in same if k.split(".")[-1] not in terms and ".cut." not in k] == []
