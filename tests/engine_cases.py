"""What the tests of the engine share: what they ask of it, and how they compare."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tiny_models
from hypothesis import HealthCheck

from model import Engine, Request, Run, Sampling, Step

PROMPT = "The capital of France is"
LONG = 24
EXACT = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
Build = Callable[..., Engine]


def asked(prompt: str | None = PROMPT, **options: Any) -> Request:
    options = {"strategy": Sampling(seed=7), "max_new_tokens": 12, "num_candidates": 5} | options
    return Request(prompt=prompt, **options)


def drained(run: Run) -> list[Any]:
    return list(run)


def untimed(step: Step) -> Step:
    return replace(step, duration_s=0.0)


def same_step(a: Step, b: Step) -> None:
    assert untimed(a) == untimed(b)


def same_numbers(a: Step, b: Step) -> None:
    """Equal up to the rounding of another order of summation."""
    close = {"rel": 1e-4, "abs": 1e-6}
    assert (a.index, a.token_id, a.text, a.draw) == (b.index, b.token_id, b.text, b.draw)
    for name in ("raw_prob", "final_prob", "entropy", "final_entropy", "kept_prob"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), **close)


def turns(engine: Engine, kind: str = "decode") -> int:
    return sum(turn.kind == kind for turn in engine.timeline())


@cache
def shared() -> Engine:
    """One engine without a thread, for tests that need nothing of their own."""
    return tiny_models.engine(threaded=False)


def held(engine: Engine) -> int:
    """Bytes of all KV caches, rows that nobody has included."""
    status = engine.status()
    return status.cache_bytes + status.kept_bytes + engine.backbone.slots.unused


def nobody(engine: Engine) -> bool:
    """Whether nobody has anything of the engine any more."""
    if not engine.threaded:
        engine.step()
    status, slots = engine.status(), engine.backbone.slots
    return status.running == status.waiting == slots.used == engine.loop.scheduler.reserved == 0


def failing(
    monkeypatch: pytest.MonkeyPatch,
    holder: Any,
    name: str,
    error: BaseException | type[BaseException],
    at: int | Callable[..., bool],
    late: bool = False,
) -> list[int]:
    """Makes some calls of `holder.name` fail; all others do what they always did.

    Args:
        at: which call fails, counted from 1; or whether one does, by its number and arguments.
        late: it fails when all is done, not before anything is.

    Returns:
        Numbers of the calls that failed so far.
    """
    act, numbers, failed = getattr(holder, name), itertools.count(1), []

    def call(*args: Any) -> Any:
        number = next(numbers)
        outcome = act(*args) if late else None
        if at(number, *args) if callable(at) else number == at:
            failed.append(number)
            raise error
        return outcome if late else act(*args)

    monkeypatch.setattr(holder, name, call)
    return failed


def as_alone(run: Run) -> None:
    """All numbers are those of the same request on an engine where nothing ever happened."""
    assert run.finished.reason == "length", run.finished.message
    shared().loop.kept.shrink(0)
    for a, b in zip(run.steps, shared().generate(run.request).events[1:-1], strict=True):
        same_step(a, b)


def end_as_alone(*runs: Run) -> None:
    """Each of them goes on to its end, and all its numbers are those that it has alone."""
    for run in runs:
        drained(run)
        as_alone(run)
