"""No memory: runs wait, make room or end with a message, and nobody else suffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deciders import Scripted, TwoRows
from engine_cases import Build, as_alone, asked, drained, end_as_alone, failing, held, nobody
from tiny_models import VOCAB

from model import Greedy, Sampling
from model.kv_cache import CHUNK, Layout, Slot, capacity
from model.strategies import Continuation, Decision

pytestmark = pytest.mark.usefixtures("faults_are_meant")


# for what a run needs


def admission(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, int, int], bool]) -> list[int]:
    """`Layout.zeros` raises where `fails(number of the call, rows, tokens)`; returns the calls."""
    calls: list[int] = []

    def narrow(number: int, layout: Layout, rows: int, tokens: int) -> bool:
        calls.append(tokens)
        return fails(number, rows, tokens)

    failing(monkeypatch, Layout, "zeros", MemoryError("no room"), at=narrow)
    return calls


def test_no_memory_at_admission_shrinks_the_budget_and_tries_again(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    before = engine.status().cache_budget
    runs = [engine.stream(asked(max_new_tokens=20))]
    engine.step()
    runs.append(engine.stream(asked(max_new_tokens=150)))  # another size, another bank
    calls = admission(monkeypatch, lambda number, *_: number == 1)
    engine.step()
    status = engine.status()
    assert (status.running, status.waiting) == (1, 1)
    assert 0 < status.cache_budget < before
    while engine.step():
        assert held(engine) <= status.cache_budget
    assert len(calls) > 1
    for run in runs:
        as_alone(run)
    assert nobody(engine)
    assert engine.generate(asked()).finish_reason == "length"


def test_no_memory_at_all_ends_every_run_with_a_message(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    with monkeypatch.context() as none:
        admission(none, lambda *_: True)
        runs = [engine.stream(asked(max_new_tokens=n)) for n in (20, 90, 200)]
        for run in runs:
            assert drained(run)[-1].message == "MemoryError: no room"
        assert nobody(engine)
    run = engine.stream(asked())
    end_as_alone(run)


def test_who_can_never_fit_is_told_and_nobody_else_suffers(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    admission(monkeypatch, lambda _, rows, tokens: rows * tokens > 4 * CHUNK)
    monkeypatch.setattr("model.kv_cache.MOST_ROWS", 1)
    small = [engine.stream(asked(max_new_tokens=30)) for _ in range(3)]
    engine.step()
    large = engine.stream(asked(max_new_tokens=600))
    later = [engine.stream(asked(max_new_tokens=30)) for _ in range(3)]
    assert drained(large)[-1].reason == "error"
    end_as_alone(*small, *later)
    assert nobody(engine)


def test_no_memory_in_a_pass_makes_room_and_goes_on(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they were doing, they end with what they would have written."""
    engine = build(threaded=False)
    before = engine.status().cache_budget
    prompt = [(7 * i) % VOCAB for i in range(3 * CHUNK)]
    runs = [engine.stream(asked(strategy=s)) for s in (Greedy(), Sampling(seed=3), TwoRows())]
    runs.append(engine.stream(asked(None, token_ids=prompt)))

    def third(number: int, feeds: Any, *_: Any) -> bool:
        return number % 3 == 0 and len(feeds) > 2

    failing(monkeypatch, engine.backbone, "forward", MemoryError, at=third, late=True)
    end_as_alone(*runs)
    assert engine.status().cache_budget < before
    assert nobody(engine)


@pytest.mark.parametrize("strategy", [Greedy(), TwoRows()], ids=["one row", "two rows"])
def test_no_memory_to_keep_what_a_run_had_costs_only_that(
    build: Build, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    engine = build(threaded=False, cache_bytes=3 * capacity(40) * 256)
    failing(monkeypatch, Slot, "park", MemoryError, at=lambda *_: True)
    paused = engine.stream(asked(max_new_tokens=20, strategy=strategy))
    engine.step()
    paused.pause()
    others = [engine.stream(asked(max_new_tokens=20)) for _ in range(3)]
    end_as_alone(*others)
    paused.resume()
    end_as_alone(paused)
    assert nobody(engine)
    assert engine.status().kept_bytes == 0


# in the middle of a step


@pytest.mark.parametrize("forks", [1, 2])
def test_no_memory_for_a_fork_ends_that_run_and_leaves_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch, forks: int
) -> None:
    """What was half decided can't be decided again: its strategy has already gone on."""

    fork = Decision(tuple(Continuation(0, (token_id,)) for token_id in (5, 6, 7)))
    quiet = Decision((Continuation(0, (5,)),))
    engine = build(threaded=False)
    other = engine.stream(asked(max_new_tokens=6))
    script = Scripted((quiet, fork, quiet))
    object.__setattr__(script, "rows", 3)
    run = engine.stream(asked(strategy=script))
    engine.step()
    failing(monkeypatch, Slot, "fork", MemoryError, at=forks)
    engine.step()
    assert run.finished.reason == "error"
    assert run.finished.message.startswith("MemoryError")
    end_as_alone(other)
    assert nobody(engine)


def test_no_memory_for_a_report_loses_no_step_in_silence(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    runs = [engine.stream(asked()) for _ in range(2)]
    engine.step()
    failing(monkeypatch, engine.trace, "keep", MemoryError, at=1)
    for run in runs:
        drained(run)
    first, second = runs
    as_alone(second)
    assert (first.finished.reason, len(first.steps)) == ("error", 1)
