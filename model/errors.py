"""What can be wrong with a request, said so that a page in any language can say it again.

Every error carries a `code` (a word of this module) and `details` (plain values), from which a
reader's language is made; `str(error)` is the English sentence for programs and logs.
"""

from __future__ import annotations

from typing import Any


class FieldError(ValueError):
    """A value somebody sent is outside what its field allows.

    Args:
        field: name of the setting, spelled as in the public surface (`"temperature"`).
        value: what was sent.
        allowed: the allowed range in words and numbers (`"a number from 0 to 10"`).
        code: what kind of mistake it is; picks the translated sentence.
        details: plain values for that sentence (`{"low": 0, "high": 10}`).
    """

    def __init__(
        self, field: str, value: Any, allowed: str, code: str = "range", **details: Any
    ) -> None:
        self.field, self.value, self.allowed, self.code = field, value, allowed, code
        self.details = details
        super().__init__(f"{field} is {shown(value)}; allowed is {allowed}.")

    @property
    def shown(self) -> str:
        """The value in a short, printable form, however large or odd it is."""
        return self.value if isinstance(self.value, str) else shown(self.value)

    def __reduce__(self):
        return _rebuild, (self.field, self.value, self.allowed, self.code, self.details)


def _rebuild(field, value, allowed, code, details) -> FieldError:
    return FieldError(field, value, allowed, code, **details)


class Busy(RuntimeError):
    """The queue is full. `seconds` is an estimate of when a place will be free."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"The engine is busy; try again in about {max(1, round(seconds))} s.")

    def __reduce__(self):
        return Busy, (self.seconds,)


class Gone(LookupError):
    """A run or a step that the engine no longer has, or never had."""

    def __init__(self, what: str, value: Any) -> None:
        self.what, self.value = what, value
        super().__init__(f"{what} {shown(value)} is gone; generate again.")

    def __reduce__(self):
        return Gone, (self.what, self.value)


class ModelUnavailable(RuntimeError):
    """A model that can't be had here. `model` is the id asked for, `reason` one clear sentence."""

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__(f"The model {shown(model)} is not available: {reason}")

    def __reduce__(self):
        return ModelUnavailable, (self.model, self.reason)


def shown(value: Any, limit: int = 60) -> str:
    """A short, printable form of any value (at most `limit` characters, no line breaks)."""
    try:
        text = repr(value)
    except Exception:  # Python writes no whole number of more than 4,300 digits
        text = f"a {type(value).__name__} that can't be written"
    return text if len(text) <= limit else text[: limit - 1] + "…"
