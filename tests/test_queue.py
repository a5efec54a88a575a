"""The queue: who waits, where in it, who comes first, and who is turned away as `Busy`."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from engine_cases import Build, asked, drained

from model import Busy, Started, Step, Waiting
from model.kv_cache import capacity


def test_a_full_queue_is_busy(build: Build) -> None:
    engine = build(max_waiting=2, threaded=False)
    runs = [engine.stream(asked()) for _ in range(2)]
    with pytest.raises(Busy, match="try again in about") as caught:
        engine.stream(asked())
    assert caught.value.seconds > 0
    engine.step()
    runs.append(engine.stream(asked()))  # those two have been admitted
    assert len({tuple(s.token_id for s in drained(run)[1:-1]) for run in runs}) == 1


def test_the_queue_is_never_longer_than_it_may_be(build: Build) -> None:
    """However many come at once."""
    engine = build(max_waiting=5, threaded=False)
    request, busy, barrier = asked(), [], threading.Barrier(8)

    def come() -> None:
        barrier.wait()
        for _ in range(20):
            try:
                engine.stream(request)
            except Busy as full:
                busy.append(full)

    people = [threading.Thread(target=come) for _ in range(8)]
    for one in people:
        one.start()
    for one in people:
        one.join()
    assert engine.status().waiting == 5
    assert len(busy) == 155


def test_who_waits_is_told_every_place(build: Build) -> None:
    engine = build(cache_bytes=capacity(40) * 256, threaded=False)  # room for one
    runs = [engine.stream(asked(max_new_tokens=4)) for _ in range(3)]
    events = [drained(run) for run in runs]
    assert [e.place for e in events[0] if isinstance(e, Waiting)] == []
    assert [e.place for e in events[1] if isinstance(e, Waiting)] == [1]
    assert [e.place for e in events[2] if isinstance(e, Waiting)] == [2, 1]
    for told in events:
        kinds = [type(event) for event in told]
        assert kinds.index(Step) > max(i for i, k in enumerate(kinds) if k in (Started, Waiting))


def test_somebody_comes_while_places_are_told(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(cache_bytes=capacity(40) * 256, threaded=False)
    runs = [engine.stream(asked(max_new_tokens=4)) for _ in range(3)]
    tell = runs[1].tell

    def told(event: Any) -> None:
        tell(event)
        if isinstance(event, Waiting):
            runs.append(engine.stream(asked(max_new_tokens=4)))

    monkeypatch.setattr(runs[1], "tell", told)
    while engine.step():
        pass
    assert [run.finished.reason for run in runs] == ["length"] * 4


def test_when_a_place_is_free_is_reckoned_only_for_who_is_turned_away(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(max_waiting=1, threaded=False)
    monkeypatch.setattr(engine.loop.timeline, "pace", lambda: pytest.fail("reckoned"))
    engine.stream(asked())
    with pytest.raises(pytest.fail.Exception, match="reckoned"):
        engine.stream(asked())


def test_busy_is_reckoned_from_how_long_steps_take(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the first seconds, when hardly any token has come."""
    engine = build(max_waiting=1, threaded=False)
    engine.stream(asked(max_new_tokens=1000))
    for _ in range(30):
        engine.step()
    slow = [replace(turn, duration_s=0.02, written=0) for turn in engine.timeline()]
    monkeypatch.setattr(engine.loop.timeline, "turns", lambda: slow)
    engine.stream(asked())
    with pytest.raises(Busy) as caught:
        engine.stream(asked())
    assert caught.value.seconds == pytest.approx(970 * 0.02)


def test_first_come_first_served(build: Build) -> None:
    engine = build(cache_bytes=capacity(60) * 256, threaded=False)
    runs = [engine.stream(asked(max_new_tokens=n)) for n in (30, 40, 1, 1)]
    order = []
    while len(order) < 4:
        engine.step()
        order += [i for i, run in enumerate(runs) if run.finished and i not in order]
    assert order == [0, 1, 2, 3]
