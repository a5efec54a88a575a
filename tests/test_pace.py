"""Pause and pace: a run that is held, stepped on, slowed down and let go."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from typing import Any

import pytest
from engine_cases import Build, asked, drained, shared
from tiny_models import VOCAB

from model import Engine, FieldError, Step
from model import run as run_module

# pause


def test_pause_and_resume(build: Build) -> None:
    engine = build(threaded=False)
    run, other = (engine.stream(asked(max_new_tokens=8)) for _ in range(2))
    for _ in range(2):
        engine.step()
    run.pause()
    drained(other)
    assert len(run.steps) == 2
    assert not engine.step()
    assert run.wait(10**9, timeout=0.01) == []
    run.resume()
    assert len(drained(run)) == 10
    assert run.finished.decode_s < 1


def test_a_paused_run_is_stepped_on(build: Build) -> None:
    """Also through a long prompt, at once however slow the pace, and as often as was asked."""
    engine = build(threaded=False)
    ids = [(7 * i) % VOCAB for i in range(5 * engine.backbone.pass_tokens)]
    run = engine.stream(asked(None, token_ids=ids, max_new_tokens=9))
    run.pace(run_module.SLOWEST)

    def steps(after: int, times: int = 1) -> int:
        for _ in range(times):
            run.pause(after)
        while engine.step():
            pass
        return len(run.steps)

    assert steps(0) == 0
    assert steps(1) == 1
    assert steps(2) == 3
    assert steps(1, times=3) == 6  # three clicks before the first was served
    assert steps(0, times=2) == 6
    run.pause(5)
    assert steps(0) == 6  # what was not taken yet is taken back
    run.pace(None)
    run.resume()
    assert steps(1) == 7  # of a run that was not paused: one more
    run.resume()
    assert len(drained(run)) == 11


def test_a_paused_run_is_stepped_on_by_the_loop(engine: Engine) -> None:
    run = engine.stream(asked(max_new_tokens=900))
    run.pause()
    seen = len(run.wait(0))
    before = len(run.steps)
    for count in range(1, 4):
        run.pause(1)
        while len(run.steps) < before + count:
            seen += len(run.wait(seen, timeout=5))
    time.sleep(0.05)
    assert len(run.steps) == before + 3
    run.cancel()


@pytest.mark.parametrize("after", [-1, 0.5, "1", None, True, float("nan"), 10**9])
def test_pauses_that_are_none(after: Any) -> None:
    run = shared().stream(asked(max_new_tokens=1))
    with pytest.raises(FieldError) as caught:
        run.pause(after)
    assert caught.value.field == "after"
    assert len(drained(run)) == 3


def test_a_paused_run_can_be_cancelled(engine: Engine) -> None:
    run = engine.stream(asked(max_new_tokens=900))
    run.pause()
    run.cancel()
    assert drained(run)[-1].reason == "cancelled"


def test_a_run_is_resumed_from_another_thread_where_there_is_no_loop(build: Build) -> None:
    run = build(threaded=False).stream(asked(max_new_tokens=3))
    run.pause()
    threading.Timer(0.1, run.resume).start()
    assert len(drained(run)) == 5


# pace


def test_a_pace_does_not_hold_back_a_prompt(build: Build) -> None:
    engine = build(threaded=False)
    ids = [5] * (5 * engine.backbone.pass_tokens)  # two turns, twice as much each, and a half
    run = engine.stream(asked(None, token_ids=ids, max_new_tokens=9))
    run.pace(run_module.SLOWEST)
    assert [engine.step() for _ in range(4)] == [True, True, True, False]
    assert len(run.steps) == 1
    run.cancel()


@pytest.mark.parametrize("threaded", [True, False])
def test_pace_holds_tokens_apart(build: Build, threaded: bool) -> None:
    run = build(threaded=threaded).stream(asked(max_new_tokens=400))
    run.pause()
    run.pace(40)
    run.resume()
    times = []
    for event in run:
        times += [time.perf_counter()] if isinstance(event, Step) else []
        if len(times) == 7:
            break
    apart = statistics.median(b - a for a, b in itertools.pairwise(times[-6:]))
    assert apart == pytest.approx(1 / 40, rel=0.5)  # one that a busy machine held up is no matter
    assert run.finished is None or run.finished.reason == "cancelled"


def test_a_pace_begins_with_its_first_token(build: Build) -> None:
    """Not with two at once."""
    engine = build(threaded=False)
    run = engine.stream(asked(max_new_tokens=5))
    run.pace(0.01)
    assert engine.step()
    assert not engine.step()
    assert len(run.steps) == 1
    run.pace(None)
    assert len(drained(run)) == 7


def test_the_slowest_pace_leaves_the_loop_alive(engine: Engine) -> None:
    slow = engine.stream(asked(max_new_tokens=50))
    slow.pace(run_module.SLOWEST)
    assert len(drained(engine.stream(asked()))) == 14
    time.sleep(0.05)
    assert engine.loop._thread.is_alive()
    slow.cancel()
    assert drained(slow)[-1].reason == "cancelled"


def test_a_pace_that_changes_during_a_step_counts_at_once(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    run = engine.stream(asked(max_new_tokens=50))
    run.pace(run_module.SLOWEST)
    tell = run.tell
    monkeypatch.setattr(run, "tell", lambda event: (tell(event), run.pace(run_module.FASTEST)))
    engine.step()  # the new pace is set while this step, of the slow one, is being taken
    monkeypatch.undo()
    assert run.due(time.perf_counter()) <= 1 / run_module.FASTEST
    run.pace(run_module.SLOWEST)
    run.pause(3)  # steps on that the pace holds back do not count ahead of it
    for _ in range(3):
        engine.step()
    run.pace(run_module.FASTEST)
    assert run.due(time.perf_counter()) <= 1 / run_module.FASTEST or run.paused
    run.resume()
    assert run.due(time.perf_counter()) == 0
    run.cancel()


@pytest.mark.parametrize("pace", [0, -1, float("nan"), float("inf"), 1e-300, "3", True, 10**400])
def test_paces_that_are_none(pace: Any) -> None:
    run = shared().stream(asked(max_new_tokens=1))
    with pytest.raises(FieldError) as caught:
        run.pace(pace)
    assert caught.value.field == "pace"
    assert len(drained(run)) == 3
