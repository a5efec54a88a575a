"""Parking: a paused run makes room for others, and goes on later as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deciders import Guessing, Scripted, TwoRows
from engine_cases import Build, as_alone, asked, drained, end_as_alone, held, shared
from tiny_models import VOCAB

from model import Engine, Finished, Greedy, Run, Sampling, Waiting
from model.kv_cache import CHUNK, capacity
from model.strategies import Continuation, Decision

ROOM = 2 * capacity(100) * 256  # for two rows of 100 tokens


def narrow(build: Build, room: int = ROOM) -> Engine:
    return build(cache_bytes=room, threaded=False)


def until(engine: Engine, run: Run, steps: int) -> None:
    while len(run.steps) < steps:
        assert engine.step()


def parked(engine: Engine, run: Run) -> bool:
    return any(entry.run is run for entry in engine.loop.scheduler.parked)


def strategies() -> dict[str, Callable[[], Any]]:
    """Each as for a prompt of `asked()` and 60 more tokens."""
    prompt = len(shared().tokenize(asked()))
    oracle = shared().generate(asked(strategy=Greedy(), max_new_tokens=60)).token_ids
    return {
        "greedy": Greedy,
        "sampling": lambda: Sampling(seed=3, top_p=0.9),
        "two rows": TwoRows,
        "guessing": lambda: Guessing(oracle, prompt),
    }


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "given up meanwhile"])
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("kind", ["greedy", "sampling", "two rows", "guessing"])
def test_a_paused_run_makes_room_and_goes_on_with_the_same_numbers(
    build: Build, kind: str, use_cache: bool, lost: bool
) -> None:
    engine = narrow(build)
    strategy = strategies()[kind]()
    run = engine.stream(asked(strategy=strategy, max_new_tokens=60, use_cache=use_cache))
    until(engine, run, 25)
    run.pause()
    before = len(run.steps)
    others = [engine.stream(asked(max_new_tokens=80)) for _ in range(3)]
    engine.step()
    assert parked(engine, run)
    assert engine.status().running == 2
    assert engine.status().waiting == 2  # one who waits, and one who is parked
    for other in others:
        end_as_alone(other)
        assert held(engine) <= ROOM
    assert len(run.steps) == before
    if lost:
        engine.loop.kept.shrink(0)
    run.resume()
    end_as_alone(run)
    assert engine.backbone.slots.used == 0


def test_a_row_that_is_behind_is_waited_for(build: Build) -> None:
    """Of two rows one was kept and the other given up: they go on together all the same."""
    engine = narrow(build)
    run = engine.stream(asked(None, token_ids=[5] * CHUNK, strategy=TwoRows(), max_new_tokens=30))
    until(engine, run, 20)
    run.pause()
    other = engine.stream(asked(max_new_tokens=80))
    engine.step()
    assert parked(engine, run)
    other.cancel()
    engine.step()
    kept = engine.loop.kept
    assert len(kept) >= 2
    kept.shrink(kept.nbytes - 1)  # one of them
    run.resume()
    end_as_alone(run)


def test_rows_of_different_lengths_run_again_whole(build: Build) -> None:
    """Without a cache: in pieces, of which the shorter row has fewer."""
    fork = Decision((Continuation(0, (5,)), Continuation(0, (5, 6))))
    on = Decision((Continuation(0, (7,)), Continuation(1, (7,))))
    seen = []
    for use_cache in (True, False):
        strategy = Scripted((fork, on))
        ids = [(3 * i) % VOCAB for i in range(4 * CHUNK - 4)]
        engine = build(threaded=False)
        run = engine.stream(
            asked(None, token_ids=ids, strategy=strategy, max_new_tokens=9, use_cache=use_cache)
        )
        assert drained(run)[-1].reason == "length"
        seen.append([[logits for _, logits in rows] for rows in strategy.hidden])
    cached, again = seen
    assert len(cached) == len(again) == 8
    for a, b in zip(cached, again, strict=True):
        assert [logits.tolist() for logits in a] == [logits.tolist() for logits in b]


def test_it_is_parked_in_the_middle_of_its_prompt(build: Build) -> None:
    engine = narrow(build, 2 * capacity(600) * 256)
    ids = [(7 * i) % VOCAB for i in range(500)]
    run = engine.stream(asked(None, token_ids=ids, max_new_tokens=9))
    engine.step()
    assert not run.steps
    run.pause()
    others = [engine.stream(asked(max_new_tokens=500)) for _ in range(2)]
    engine.step()
    assert parked(engine, run)
    for other in others:
        drained(other)
    run.resume()
    end_as_alone(run)


def test_where_nobody_waits_it_keeps_its_place(build: Build) -> None:
    engine = narrow(build)
    run = engine.stream(asked(max_new_tokens=60))
    until(engine, run, 5)
    run.pause()
    used = engine.status().cache_bytes
    drained(engine.stream(asked(max_new_tokens=60)))
    assert not parked(engine, run)
    assert engine.status().cache_bytes == used
    run.resume()
    fed = len(engine.timeline())
    engine.step()
    assert [turn.tokens for turn in engine.timeline()[fed:]] == [1]
    end_as_alone(run)


def test_only_as_many_are_parked_as_are_in_the_way(build: Build) -> None:
    engine = narrow(build, 3 * capacity(100) * 256)
    runs = [engine.stream(asked(max_new_tokens=60)) for _ in range(3)]
    engine.step()
    for run in runs:
        run.pause()
    other = engine.stream(asked(max_new_tokens=60))
    engine.step()
    assert [parked(engine, run) for run in runs] == [True, False, False]
    drained(other)
    for run in runs:
        run.resume()
        end_as_alone(run)


@pytest.mark.parametrize("kept", [True, False])
def test_cancel_while_parked(build: Build, kept: bool) -> None:
    engine = narrow(build)
    run = engine.stream(asked(max_new_tokens=60, strategy=TwoRows()))
    until(engine, run, 5)
    run.pause()
    others = [engine.stream(asked(max_new_tokens=60)) for _ in range(2)]
    engine.step()
    assert parked(engine, run)
    if not kept:
        engine.loop.kept.shrink(0)
    run.cancel()
    engine.step()
    assert run.finished.reason == "cancelled"
    assert run.finished.text.startswith("".join(step.text for step in run.steps))
    assert engine.status().waiting == 0
    end_as_alone(*others)
    assert engine.backbone.slots.used == 0
    assert engine.loop.scheduler.all() == []


def test_who_is_resumed_comes_before_those_who_wait_in_the_order_of_parking(build: Build) -> None:
    engine = narrow(build)
    early = [engine.stream(asked(max_new_tokens=60)) for _ in range(2)]
    engine.step()
    for run in early:
        run.pause()
    others = [engine.stream(asked(max_new_tokens=80)) for _ in range(3)]
    engine.step()
    assert all(parked(engine, run) for run in early)
    for run in early:
        run.resume()
    engine.step()
    assert [entry.run for entry in engine.loop.scheduler.waiting] == [*early, others[2]]
    places = [
        [event.place for event in run.wait(0, 0) if isinstance(event, Waiting)] for run in early
    ]
    assert [told[-1] for told in places] == [1, 2]
    while engine.step():
        assert held(engine) <= ROOM
    for run in early + others:
        assert isinstance(run.wait(0, 0)[-1], Finished)
        as_alone(run)


def test_it_is_stepped_on_from_where_it_is_parked(build: Build) -> None:
    engine = narrow(build)
    run = engine.stream(asked(max_new_tokens=60))
    until(engine, run, 5)
    run.pause()
    others = [engine.stream(asked(max_new_tokens=90)) for _ in range(2)]
    engine.step()
    assert parked(engine, run)
    run.pause(2)
    for other in others:
        drained(other)
    while engine.step():
        pass
    assert len(run.steps) == 7
    run.resume()
    end_as_alone(run)
