"""The live status: one look at the engine serves every page that asks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from engine_cases import asked
from starlette.applications import Starlette
from starlette.testclient import TestClient

from playground import assets
from playground.live_status import FRESH, RECENT, LiveStatus


class Watched:
    """An engine that counts who looks."""

    def __init__(self, status) -> None:
        self.now, self.looks = status, 0

    def status(self):
        self.looks += 1
        return self.now


@pytest.fixture
def watched(engine) -> Watched:
    return Watched(engine.status())


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=100.0)


@pytest.fixture
def live(watched: Watched, clock: SimpleNamespace) -> LiveStatus:
    live = LiveStatus(watched, clock=lambda: clock.now)
    watched.looks = 0
    return live


def test_thirty_pages_cost_one_look_each_half_second(live, watched, clock) -> None:
    for _ in range(3):
        answers = [live.answer() for _ in range(30)]
        assert all(answer == answers[0] for answer in answers)
        clock.now += FRESH
    assert watched.looks == 3


def test_a_restart_is_told_for_a_while_to_everyone(live, watched, clock) -> None:
    assert live.answer()["restarted"] is False
    watched.now = replace(watched.now, restarts=watched.now.restarts + 1)
    clock.now += FRESH
    assert live.answer()["restarted"] is True
    clock.now += RECENT - 1
    assert live.answer()["restarted"] is True
    clock.now += 2
    assert live.answer()["restarted"] is False


def test_restarts_from_before_the_page_was_served_are_no_news(watched, clock) -> None:
    watched.now = replace(watched.now, restarts=3)
    assert LiveStatus(watched, clock=lambda: clock.now).answer()["restarted"] is False


def test_the_route_answers_with_what_runs(engine) -> None:
    client = TestClient(Starlette(routes=assets.routes(LiveStatus(engine))))
    run = engine.stream(asked(max_new_tokens=900))
    run.wait(2, timeout=5)
    answer = client.get(f"{assets.PREFIX}/status.json")
    run.cancel()
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    told = answer.json()
    assert told["running"] == 1
    assert told["waiting"] == 0
    assert 0 < told["cache_bytes"] <= told["cache_budget"]
    assert told["restarted"] is False
    assert set(told) == {
        "running",
        "waiting",
        "cache_bytes",
        "cache_budget",
        "tokens_per_s",
        "restarted",
    }
