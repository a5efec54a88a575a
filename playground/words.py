"""All words of the page, in every language it speaks.

They live in `locales/*.json`: one file a language, nested, `{name}` where a value goes.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

from model import Busy, FieldError, Gone, ModelUnavailable

log = logging.getLogger(__name__)
LANGUAGES = {"en": "English", "tr": "Türkçe"}
FALLBACK = "en"
_FOLDER = Path(__file__).parent / "locales"


@cache
def all_words() -> dict[str, dict[str, Any]]:
    """Language to its nested words, as the page's own scripts get them too."""
    return {
        language: json.loads((_FOLDER / f"{language}.json").read_text(encoding="utf-8"))
        for language in LANGUAGES
    }


@cache
def flat(language: str) -> dict[str, str]:
    """Dotted key to text."""

    def walk(node: Any, path: str) -> dict[str, str]:
        if isinstance(node, str):
            return {path: node}
        found = {}
        for key, child in node.items():
            found.update(walk(child, f"{path}.{key}" if path else key))
        return found

    return walk(all_words()[language], "")


def language(value: Any) -> str:
    """A language of the page; anything else a caller may send is the fallback."""
    return value if isinstance(value, str) and value in LANGUAGES else FALLBACK


def say(in_language: str, key: str, /, **values: Any) -> str:
    """The text of `key`, with numbers written as the language writes them."""
    text = flat(language(in_language))[key]
    # Plain replacement, never str.format: values are data and may hold braces themselves.
    for name, value in values.items():
        text = text.replace("{" + name + "}", number(in_language, value))
    return text


def number(in_language: str, value: Any) -> str:
    """Numbers with the language's separators, everything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    written = f"{value:,}" if isinstance(value, int) else f"{value:,g}"
    if language(in_language) == "tr":
        written = written.translate(str.maketrans(",.", ".,"))
    return written


def languages(in_language: str, codes: tuple[str, ...]) -> str:
    """Names of languages, given their ISO 639 codes."""
    names = flat(language(in_language))
    return ", ".join(names.get(f"languages.{code}", code) for code in codes)


def field_name(in_language: str, field: str) -> str:
    """What the page calls a setting."""
    return flat(language(in_language)).get(f"fields.{field}", field)


def complaint(in_language: str, error: Exception, button: str = "controls.generate") -> str:
    """What is wrong and what to do next, in the reader's language.

    Errors that no one foresaw are told apart by their kind alone: their text may name paths. That
    goes to the log.

    Args:
        button: key of the name of the button that starts afresh.
    """
    button = say(in_language, button)
    match error:
        case FieldError():
            field = field_name(in_language, error.field)
            allowed = say(in_language, f"errors.allowed.{error.code}", **error.details)
            value = "" if error.value is None else _short(error.shown)
            if not value.strip():
                return say(in_language, "errors.field_empty", field=field, allowed=allowed)
            return say(in_language, "errors.field", field=field, value=value, allowed=allowed)
        case Busy():
            return say(in_language, "errors.busy", seconds=max(1, round(error.seconds)))
        case Gone():
            return say(in_language, "errors.gone", button=button)
        case ModelUnavailable():
            return say(in_language, "errors.model", model=error.model)
        case _:
            log.error("a reader was told of an error that nobody foresaw", exc_info=error)
            kind = type(error).__name__
            return say(in_language, "errors.unforeseen", kind=kind, button=button)


def _short(text: str, longest: int = 40) -> str:
    """What somebody sent, short enough for a sentence."""
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    # Half of a surrogate pair is no text: nothing that sends JSON could send it on.
    return text.encode("utf-8", "backslashreplace").decode()
