"""From runs to the page: several runs in one stream, and who watches what."""

from __future__ import annotations

from collections import defaultdict

import pytest

from model import Greedy, Request, Sampling
from playground import streaming
from playground.streaming import Audience


def request(seed: int | None = None, tokens: int = 12) -> Request:
    strategy = Greedy() if seed is None else Sampling(seed=seed)
    return Request(prompt="once upon a time", strategy=strategy, max_new_tokens=tokens)


@pytest.fixture(autouse=True)
def _no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "FRAME", 0.001)


def test_one_run_is_told_whole_and_in_order(engine) -> None:
    run = engine.stream(request())
    told = list(streaming.follow(engine, run))
    steps = [step for message in told for step in message["steps"]]
    assert [step["id"] for step in steps] == [step.token_id for step in run.steps]
    assert "started" in told[0]
    assert [("finished" in message) for message in told] == [False] * (len(told) - 1) + [True]


def test_several_runs_are_told_together_each_whole_and_in_order(engine) -> None:
    runs = [engine.stream(request(seed, tokens)) for seed, tokens in ((1, 5), (2, 30), (3, 12))]
    steps, ends = defaultdict(list), []
    for told in streaming.follow_together(engine, runs):
        assert len({message["run"] for message in told}) == len(told)
        for message in told:
            steps[message["run"]] += [step["id"] for step in message["steps"]]
            ends += [message["run"]] * ("finished" in message)
    for run in runs:
        assert steps[run.handle] == [step.token_id for step in run.steps]
    assert sorted(ends) == sorted(run.handle for run in runs)


def test_a_run_that_is_held_up_holds_up_no_other(engine) -> None:
    held, free = engine.stream(request(1)), engine.stream(request(2))
    held.pause()
    ended = []
    for told in streaming.follow_together(engine, [held, free]):
        ended += [message["run"] for message in told if "finished" in message]
        if ended == [free.handle]:
            held.resume()
    assert ended == [free.handle, held.handle]


def test_silence_is_told_so_that_the_connection_is_tried(engine, monkeypatch) -> None:
    monkeypatch.setattr(streaming, "PATIENCE", 0.05)
    runs = [engine.stream(request(seed, 200)) for seed in (1, 2)]
    for run in runs:
        run.pause()
    for told in streaming.follow_together(engine, runs):
        if not told:
            break
    else:
        pytest.fail("paused runs ended")


def test_closing_the_stream_cancels_all_its_runs(engine) -> None:
    runs = [engine.stream(request(seed, 900)) for seed in (1, 2)]
    stream = streaming.follow_together(engine, runs)
    next(stream)
    stream.close()
    for run in runs:
        assert run.result().finish_reason == "cancelled"


def test_no_runs_are_over_at_once(engine) -> None:
    assert list(streaming.follow_together(engine, [])) == []


class FakeRun:
    """As much of a run as an audience knows."""

    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_a_place_that_watches_anew_ends_what_it_watched_and_nothing_else() -> None:
    audience = Audience()
    old, new, kept, decode, other = (FakeRun() for _ in range(5))
    audience.watch("page", "compare", [old, kept])
    audience.watch("page", "decode", [decode])
    audience.watch("another page", "compare", [other])
    audience.watch("page", "compare", [kept, new])
    assert [run.cancelled for run in (old, new, kept, decode, other)] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_a_page_that_leaves_ends_all_its_places_and_no_other_page() -> None:
    audience = Audience()
    compare, decode, other = FakeRun(), FakeRun(), FakeRun()
    audience.watch("page", "compare", [compare])
    audience.watch("page", "decode", [decode])
    audience.watch("another page", "decode", [other])
    audience.leave("page")
    assert [run.cancelled for run in (compare, decode, other)] == [True, True, False]
    audience.leave("page")  # once more is no error


def test_what_is_done_is_not_watched_and_a_newer_watch_stays() -> None:
    audience = Audience()
    old, new = FakeRun(), FakeRun()
    audience.watch("page", "compare", [old])
    audience.watch("page", "compare", [new])
    audience.done("page", "compare", [old])  # its stream ends after the new one has begun
    audience.leave("page")
    assert new.cancelled
    audience.watch("page", "compare", [new])
    audience.done("page", "compare", [new])
    assert audience._runs == {}
