"""What the controls say, read into a request. Every value is checked here, whoever sends it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model import FieldError, Greedy, Request, Sampling

MOST_CANDIDATES = 1000
LENGTH = 48  # new tokens where nobody says how many
LONGEST_TYPED = 200_000  # characters that the prompt box takes
STRATEGIES = ("sampling", "greedy")


@dataclass(frozen=True)
class Knob:
    """One setting of the page.

    Attributes:
        low, high, step: what the slider offers (the engine may allow more).
        value: where it stands at first; neutral.
        whole: takes whole numbers.
    """

    name: str
    low: float
    high: float
    step: float
    value: float
    whole: bool = False


KNOBS = {
    knob.name: knob
    for knob in (
        Knob("temperature", 0, 2, 0.05, 1),
        Knob("top_k", 0, 200, 1, 0, whole=True),
        Knob("top_p", 0, 1, 0.01, 1),
        Knob("min_p", 0, 0.5, 0.01, 0),
        Knob("typical_p", 0.05, 1, 0.01, 1),
        Knob("repetition_penalty", 0.5, 2, 0.05, 1),
        Knob("no_repeat_ngram_size", 0, 6, 1, 0, whole=True),
    )
}
PENALTIES = ("repetition_penalty", "no_repeat_ngram_size")


def strategy(values: Mapping[str, Any]) -> Greedy | Sampling:
    """The strategy that these settings describe.

    Args:
        values: by name; missing ones are neutral. `strategy` is "sampling" or "greedy".

    Raises:
        FieldError: a value outside its range.
    """
    kind = values.get("strategy", STRATEGIES[0])
    if kind not in STRATEGIES:
        these = ", ".join(STRATEGIES)
        raise FieldError("strategy", kind, these, "one_of_these", these=these)
    names = PENALTIES if kind == "greedy" else (*KNOBS, "seed")
    given = {name: values[name] for name in names if values.get(name) is not None}
    if "seed" in given:
        given["seed"] = seed(given["seed"])
        if given["seed"] is None:
            del given["seed"]
    return (Greedy if kind == "greedy" else Sampling)(**given)


def seed(value: Any) -> int | None:
    """A typed seed; empty means that the engine picks one."""
    if isinstance(value, str):
        typed = value.strip()
        if not typed:
            return None
        # isdecimal alone would let other scripts' digits and endless numbers in.
        if typed.isascii() and typed.isdecimal() and len(typed) < 20:
            return int(typed)
    elif value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def request(values: Mapping[str, Any]) -> Request:
    """The request that the controls, or a caller of the API, describe.

    Raises:
        FieldError: a value outside its range.
    """
    names = ("max_new_tokens", "num_candidates", "chat", "stop")
    given = {name: values[name] for name in names if values.get(name) is not None}
    given.setdefault("max_new_tokens", LENGTH)
    if "num_candidates" in given:
        given["num_candidates"] = candidates(given["num_candidates"])
    if isinstance(given.get("stop"), str):
        given["stop"] = stops(given["stop"])
    # An empty system message is none: the template's own stays.
    system = values.get("system") or None if given.get("chat") else None
    return Request(
        prompt=values.get("prompt", ""), strategy=strategy(values), system=system, **given
    )


def candidates(count: Any) -> Any:
    """A number of candidates to report; bounded, since every one is built for every step."""
    if isinstance(count, (int, float)) and count > MOST_CANDIDATES:
        allowed = f"a whole number from 1 to {MOST_CANDIDATES}"
        raise FieldError("num_candidates", count, allowed, "whole", low=1, high=MOST_CANDIDATES)
    return count


def stops(typed: str) -> tuple[str, ...]:
    r"""Stop strings as typed: one a line, with \n for a line end and \\ for a backslash."""
    lines = [line for line in typed.split("\n") if line.strip()]
    return tuple(
        "\\".join(part.replace("\\n", "\n") for part in line.split("\\\\")) for line in lines
    )


def shown(strategy: Greedy | Sampling) -> dict[str, Any]:
    """A strategy as the page's settings, seed included: the way back from `strategy`."""
    kind = "greedy" if isinstance(strategy, Greedy) else "sampling"
    values = {name: getattr(strategy, name, knob.value) for name, knob in KNOBS.items()}
    return {"strategy": kind, **values, "seed": strategy.seed}
