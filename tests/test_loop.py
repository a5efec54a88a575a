"""The loop: driven by `step` or by its thread, asleep when idle, closed, and used by many."""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import time

import pytest
import tiny_models
from engine_cases import Build, asked, drained, same_numbers, shared
from tiny_models import VOCAB

from model import Busy, Engine, Greedy, Run, Sampling, Step
from model.kv_cache import capacity


def test_without_a_thread_step_drives_everything(build: Build) -> None:
    engine = build(threaded=False)
    assert engine.step() is False
    run = engine.stream(asked(max_new_tokens=3))
    assert run.steps == []
    assert [engine.step() for _ in range(4)] == [True, True, True, False]
    assert run.finished.reason == "length"
    assert engine.loop._thread is None


def test_an_idle_loop_sleeps(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()
    turn = engine.loop.turn
    monkeypatch.setattr(engine.loop, "turn", lambda: (next(count), turn())[1])
    drained(engine.stream(asked()))
    paused = engine.stream(asked(max_new_tokens=500))
    paused.pause()
    paced = engine.stream(asked(max_new_tokens=500))
    paced.pace(1)
    time.sleep(0.1)
    before = next(count)
    time.sleep(0.4)
    assert next(count) - before <= 4
    for run in (paused, paced):
        run.cancel()
        drained(run)


def test_close_ends_all_runs(build: Build) -> None:
    engine = build(cache_bytes=capacity(950) * 256)
    running, waiting = (engine.stream(asked(max_new_tokens=900)) for _ in range(2))
    while not running.steps:
        running.wait(1, timeout=5)
    engine.close()
    for run in (running, waiting):
        assert drained(run)[-1].reason == "cancelled"
    assert not engine.loop._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        engine.stream(asked())
    assert running.reweigh(0, Greedy()).index == 0  # its logits are still there
    engine.close()


def test_a_given_up_step_of_a_closed_engine_says_so(build: Build) -> None:
    engine = build(trace_bytes=0)
    run = engine.stream(asked(max_new_tokens=2))
    drained(run)
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        run.reweigh(0)


def test_no_run_outlives_a_close_that_it_races(build: Build) -> None:
    for _ in range(20):
        engine = build()
        runs: list[Run] = []

        def start(engine: Engine = engine, runs: list[Run] = runs) -> None:
            try:
                while True:
                    runs.append(engine.stream(asked(max_new_tokens=500)))
            except (RuntimeError, Busy):
                pass

        starter = threading.Thread(target=start)
        starter.start()
        time.sleep(0.002)
        engine.close()
        starter.join(10)
        for run in runs:
            run.wait(10**9, timeout=5)
            assert run.finished is not None


def test_a_close_between_two_lines_of_stream(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = engine.loop.scheduler.add
    monkeypatch.setattr(engine.loop.scheduler, "add", lambda *a: (engine.close(), add(*a)))
    assert drained(engine.stream(asked()))[-1].reason == "cancelled"


def test_a_forgotten_engine_ends_its_thread() -> None:
    engine = tiny_models.engine()
    engine.generate(asked())
    thread = engine.loop._thread
    assert thread.is_alive()
    del engine
    until = time.perf_counter() + 5
    while thread.is_alive() and time.perf_counter() < until:
        gc.collect()  # its last turn may still hold the run, and with it the engine
        thread.join(0.01)
    assert not thread.is_alive()


def test_many_threads_at_once(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    """Runs, branches, questions, cancellations and status from eight threads."""
    engine = build(max_waiting=200, cache_bytes=capacity(60) * 256 * 6, trace_bytes=4 * VOCAB * 50)
    wanted = shared().generate(asked()).token_ids
    reweighed = shared().stream(asked())
    drained(reweighed)
    reweighed = reweighed.reweigh(5, Sampling(top_k=3))
    faults: list[BaseException] = []
    until = time.perf_counter() + 2

    def person(number: int) -> None:
        try:
            while time.perf_counter() < until:
                run = engine.stream(asked())
                assert tuple(s.token_id for s in drained(run)[1:] if isinstance(s, Step)) == wanted
                branch = run.branch(6, more=6)
                drained(branch)
                assert tuple(step.token_id for step in branch.steps) == wanted
                same_numbers(run.reweigh(5, Sampling(top_k=3)), reweighed)
                left = engine.stream(asked(max_new_tokens=100))
                if number % 2:
                    left.pace(1000)
                left.cancel()
                assert engine.status().running >= 0
        except BaseException as fault:
            faults.append(fault)

    with caplog.at_level(logging.ERROR):
        people = [threading.Thread(target=person, args=(n,)) for n in range(8)]
        for one in people:
            one.start()
        for one in people:
            one.join(30)
    assert faults == []
    assert caplog.records == []
