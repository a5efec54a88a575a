"""A request: what to continue, how, and how far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from . import ranges
from .errors import FieldError
from .strategies import Sampling, Strategy

LONGEST_PROMPT = 500_000  # characters; the model's own limit, in tokens, comes later
MOST_NEW_TOKENS = 1_000_000
MOST_STOPS = 16
LONGEST_STOP = 200


@dataclass(frozen=True)
class Request:
    """One text to continue.

    Args:
        prompt: the text; empty starts from the model's start token. Or
        token_ids: the exact tokens instead.
        strategy: `Greedy`, `Sampling`, …
        max_new_tokens: the limit; where the model's context has less room, that is the limit.
        num_candidates: tokens reported per step, up to the whole vocabulary.
        stop: strings that end the run as soon as one occurs in the new text.
        ignore_eos: go on after the model's end tokens.
        chat: put the prompt into the model's chat template, as the user's message.
        system: the system message of the chat; None leaves it to the template.
        use_cache: False computes the whole context anew in every step.

    Raises:
        FieldError: a value outside its range, before anything runs.
    """

    prompt: str | None = None
    token_ids: Sequence[int] | None = None
    strategy: Strategy = field(default_factory=Sampling)
    max_new_tokens: int = 64
    num_candidates: int = 20
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    chat: bool = False
    system: str | None = None
    use_cache: bool = True

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        if (self.prompt is None) == (self.token_ids is None):
            raise FieldError("prompt", self.prompt, "either a prompt or token_ids", "one_of")
        if self.prompt is not None:
            ranges.text("prompt", self.prompt, LONGEST_PROMPT)
        else:
            put("token_ids", _token_ids(self.token_ids))
        checked_strategy(self.strategy)
        limit = ranges.whole("max_new_tokens", self.max_new_tokens, 1, MOST_NEW_TOKENS)
        put("max_new_tokens", limit)
        put("num_candidates", ranges.whole("num_candidates", self.num_candidates, 1, 10_000_000))
        put("stop", _stops(self.stop))
        for name in ("ignore_eos", "chat", "use_cache"):
            ranges.yes_or_no(name, getattr(self, name))
        if self.system is not None:
            ranges.text("system", self.system, LONGEST_PROMPT)
        if self.chat and self.prompt is None:
            raise FieldError("chat", True, "a prompt as text, which token_ids is not", "chat_text")


def checked_strategy(value: Any) -> Strategy:
    """Settings that can decode, not a name and not the class itself.

    Raises:
        FieldError: anything else.
    """
    if isinstance(value, type) or not hasattr(value, "decider"):
        raise FieldError("strategy", value, "Greedy(…) or Sampling(…)", "strategy")
    return value


def _token_ids(value: Any) -> tuple[int, ...]:
    if hasattr(value, "tolist"):  # an array or a tensor
        value = value.tolist()
    try:
        items = None if isinstance(value, (str, bytes)) else iter(value)
    except TypeError:
        items = None
    if items is None:
        raise FieldError("token_ids", value, "a list of token numbers", "token_ids")
    return tuple(ranges.whole("token_ids", v, 0, 2**31 - 1) for v in items)


def _stops(value: Any) -> tuple[str, ...]:
    value = (value,) if isinstance(value, str) else value
    allowed = f"at most {MOST_STOPS} non-empty strings"
    try:
        items = tuple(islice(value, MOST_STOPS + 1))
    except TypeError:
        items = ("",)
    stops = tuple(ranges.text("stop", s, LONGEST_STOP) for s in items)
    if len(stops) > MOST_STOPS or "" in stops:
        raise FieldError("stop", value, allowed, "stop", most=MOST_STOPS)
    return stops
