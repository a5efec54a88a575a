"""Checks for every setting, where it enters.

Each returns the value in its proper type or raises `FieldError`.
"""

from __future__ import annotations

import math
from typing import Any

from .errors import FieldError

ENDLESS = 2**63 - 1  # where a whole number has no bound of its own


def number(field: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    """A finite number from `low` to `high` (greater than `low` where `above`)."""
    allowed = f"a number {'above' if above else 'from'} {low:g} {'up ' if above else ''}to {high:g}"
    code = "number_above" if above else "number"
    value = _plain(value)
    proper = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A bignum compares with floats but does not convert; the range check comes first.
    if not proper or not (low < value if above else low <= value) or not value <= high:
        raise FieldError(field, value, allowed, code, low=low, high=high)
    return float(value)


def whole(field: str, value: Any, low: int, high: int) -> int:
    """A whole number from `low` to `high`; 3.0 counts as 3, since JSON knows one kind of number."""
    value = _plain(value)
    proper = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not proper or not low <= value <= high or math.floor(value) != value:
        allowed = f"a whole number from {low} to {high}"
        raise FieldError(field, value, allowed, "whole", low=low, high=high)
    return int(value)


def _plain(value: Any) -> Any:
    """Single numbers of numpy and torch as Python's own; all else as it is."""
    single = type(value).__module__ in ("numpy", "torch") and getattr(value, "shape", 0) == ()
    return value.item() if single else value


def yes_or_no(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise FieldError(field, value, "true or false", "yes_or_no")
    return value


def text(field: str, value: Any, longest: int) -> str:
    """A string of at most `longest` characters that is valid Unicode (no lone surrogates)."""
    if not isinstance(value, str):
        raise FieldError(field, value, "a text", "text")
    if len(value) > longest:
        allowed = f"at most {longest} characters, and this has {len(value)}"
        raise FieldError(field, value, allowed, "too_long", longest=longest, length=len(value))
    bad = next((i for i, c in enumerate(value) if "\ud800" <= c <= "\udfff"), None)
    if bad is not None:
        allowed = f"valid Unicode, and character {bad + 1} is half of a surrogate pair"
        raise FieldError(field, value, allowed, "surrogate", position=bad + 1)
    return value
