"""Faults in the loop itself: it is started again, goes on, and every reader gets an end."""

from __future__ import annotations

import logging
import time

import pytest
from engine_cases import Build, asked, drained, end_as_alone, failing, nobody

from model import Engine, decoding
from model.kv_cache import capacity

pytestmark = pytest.mark.usefixtures("faults_are_meant")


@pytest.mark.parametrize("where", ["forward", "next"])
def test_a_loop_that_dies_is_started_again(
    build: Build, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    engine = build(cache_bytes=capacity(950) * 256)
    run = engine.stream(asked(max_new_tokens=900))
    waiting = engine.stream(asked(max_new_tokens=3, prompt="later"))
    run.wait(3, timeout=5)
    assert engine.status().restarts == 0
    old = engine.loop._thread
    holder = engine.backbone if where == "forward" else engine.loop.scheduler
    failing(monkeypatch, holder, where, SystemExit, at=1)
    finished = drained(run)[-1]
    assert finished.reason == "error"
    assert "started again" in finished.message
    end_as_alone(waiting)  # who had not begun lost nothing
    assert engine.status().restarts == 1
    assert engine.loop._thread is not old
    assert len(drained(engine.stream(asked()))) == 14
    old.join(5)
    assert not old.is_alive()
    assert nobody(engine)


def test_a_loop_that_dies_again_and_again(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build()
    with monkeypatch.context() as broken:
        failing(broken, engine.backbone, "forward", SystemExit, at=lambda *_: True)
        for count in range(1, 4):
            assert drained(engine.stream(asked()))[-1].reason == "error"
            assert engine.status().restarts == count
    assert len(drained(engine.stream(asked()))) == 14


def test_a_turn_that_fails_again_and_again_gives_its_runs_up(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that come when it has failed for long; then it works again."""
    monkeypatch.setattr("model.loop.BREATH", 0.005)
    engine = build()
    with monkeypatch.context() as broken:
        broken.setattr(engine.loop.scheduler, "next", lambda _: 1 / 0)
        for _ in range(3):
            run = engine.stream(asked())
            run.wait(10**9, timeout=5)
            assert run.finished is not None
            assert "ZeroDivisionError" in run.finished.message
    assert engine.status().restarts >= 1
    assert len(drained(engine.stream(asked()))) == 14
    assert nobody(engine)


def test_a_turn_that_fails_once_costs_nobody_anything(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine.stream(asked(max_new_tokens=200))
    run.wait(3, timeout=5)
    failed = failing(monkeypatch, engine.loop.scheduler, "next", ZeroDivisionError, at=1)
    end_as_alone(run)
    assert failed == [1]
    assert engine.status().restarts == 0


def test_a_turn_that_fails_does_not_spin(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        with monkeypatch.context() as broken:
            broken.setattr(engine.loop.scheduler, "until_due", lambda _: 1 / 0)
            drained(engine.stream(asked(max_new_tokens=2)))
            caplog.clear()
            time.sleep(0.35)
            assert 1 <= len(caplog.records) <= 5
        assert len(drained(engine.stream(asked()))) == 14
    assert engine.loop._thread.is_alive()


def test_a_reader_gets_the_end_whatever_fails_in_it(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build()
    monkeypatch.setattr(engine.loop.kept, "put", lambda *_: 1 / 0)
    assert drained(engine.stream(asked()))[-1].reason == "length"
    monkeypatch.setattr(decoding.Decoding, "final_text", lambda *_: 1 / 0)
    finished = drained(engine.stream(asked()))[-1]
    assert (finished.reason, finished.text) == ("length", "")
    assert nobody(engine)
