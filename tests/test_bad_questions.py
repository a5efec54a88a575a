"""Whatever somebody asks about a step or makes of it: a `FieldError`, `Gone`, or an answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from request_cases import HUGE, QUICK, a_run, attempt, engine, good, named, odd

from model import FieldError, Gone, Greedy, Sampling

pytestmark = pytest.mark.usefixtures("engine_still_works")


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
