"""Turns: who takes part in a pass, how much of a long prompt it takes, and whose its rows are."""

from __future__ import annotations

from deciders import QUIET, Scripted, TwoRows
from engine_cases import Build, asked, drained, same_step, shared, untimed
from tiny_models import VOCAB

from model import Greedy, Sampling
from model.kv_cache import CHUNK
from model.scheduler import MOST_RUNNING


def test_everyone_takes_part_in_every_turn(build: Build) -> None:
    engine = build(threaded=False)
    runs = [engine.stream(asked(max_new_tokens=5)) for _ in range(3)]
    for turn in range(1, 4):
        engine.step()
        assert [len(run.steps) for run in runs] == [turn] * 3
    runs.append(engine.stream(asked(max_new_tokens=5)))  # at any step
    engine.step()
    assert [len(run.steps) for run in runs] == [4, 4, 4, 1]
    handles = tuple(run.handle for run in runs)
    assert [set(turn.handles) for turn in engine.timeline()] == [set(handles[:3])] * 3 + [
        set(handles)
    ]
    assert engine.timeline()[-1].prefilling == handles[3:]


def test_a_pass_has_so_many_rows_at_most(build: Build) -> None:
    engine = build(max_waiting=100, threaded=False)
    wide = MOST_RUNNING // 2 - 1
    runs = [engine.stream(asked(strategy=TwoRows(), max_new_tokens=2)) for _ in range(wide)]
    runs += [engine.stream(asked(max_new_tokens=2)) for _ in range(4)]
    engine.step()
    assert engine.status().running == wide + 2
    while engine.step():
        pass
    assert {run.finished.reason for run in runs} == {"length"}


def test_runs_that_share_a_pass_are_told_apart(build: Build) -> None:
    engine = build(threaded=False)
    strategies = [Sampling(seed=1), TwoRows(), Greedy(), Scripted((QUIET,), wants_hidden=True)]
    requests = [asked(f"{n} cats", strategy=s) for n, s in enumerate(strategies)]
    runs = [engine.stream(request) for request in requests]
    for run, request in zip(runs, requests, strict=True):
        alone = build(threaded=False).stream(request)
        drained(alone)
        drained(run)
        assert [untimed(step) for step in run.steps] == [untimed(step) for step in alone.steps]
        assert run.finished.reason == alone.finished.reason
    told = engine.timeline()
    assert [turn.kind for turn in told] == ["prefill"] + ["decode"] * 11
    assert told[0].handles == tuple(run.handle for run in runs)
    assert [turn.written for turn in told] == [3] * 12
    assert told[1].tokens == 1 + 2 + 1 + 1


# long prompts


def test_a_long_prompt_holds_nobody_up(build: Build) -> None:
    """Between two steps of the others a pass takes a bounded part of it, in whole chunks."""
    engine = build(threaded=False)
    most = engine.backbone.pass_tokens
    others = [engine.stream(asked(max_new_tokens=60)) for _ in range(3)]
    engine.step()
    ids = [(7 * i) % VOCAB for i in range(6 * most + 10)]
    long = [engine.stream(asked(None, token_ids=[n, *ids], max_new_tokens=2)) for n in range(2)]
    engine.loop.timeline.clear()
    while not all(run.finished for run in long):
        engine.step()
    told = engine.timeline()
    first = next(i for i, turn in enumerate(told) if not turn.prefilling)
    assert first == len(ids) // CHUNK + 1  # a chunk of each in a turn
    for turn in told:
        assert turn.tokens <= most + 3 + 1
        assert {run.handle for run in others} <= set(turn.handles)
    shares = [sum(run.handle in turn.handles for turn in told[:6]) for run in long]
    assert shares == [6, 6]  # half of it each: neither waits for the other
    for run in (*others, *long):
        drained(run)
        alone = shared().generate(run.request)
        for a, b in zip(run.steps, alone.events[1:-1], strict=True):
            same_step(a, b)


def test_a_prompt_goes_faster_where_nobody_waits_for_it(build: Build) -> None:
    engine = build(threaded=False)
    ids = [(7 * i) % VOCAB for i in range(4 * engine.backbone.pass_tokens)]
    drained(engine.stream(asked(None, token_ids=ids, max_new_tokens=1)))
    assert [turn.tokens for turn in engine.timeline()] == [2 * engine.backbone.pass_tokens] * 2


def test_many_prompts_have_their_turn_one_after_the_other(build: Build) -> None:
    """More than a pass has room for: those that had none come first in the next."""
    engine = build(threaded=False)
    decoding_run = engine.stream(asked(max_new_tokens=100))
    engine.step()
    runs = [
        engine.stream(asked(None, token_ids=[n] * (2 * CHUNK + 1), max_new_tokens=1))
        for n in range(8)
    ]
    engine.loop.timeline.clear()
    for _ in range(4):
        engine.step()
    served = [
        run.handle for turn in engine.timeline() for run in runs if run.handle in turn.prefilling
    ]
    assert sorted(served) == sorted(run.handle for run in runs)
    while not all(run.finished for run in runs):
        engine.step()
    assert len(decoding_run.steps) == 1 + len(engine.timeline())
    decoding_run.cancel()


def test_cancel_in_the_middle_of_a_long_prompt_frees_the_row_at_once(build: Build) -> None:
    engine = build(threaded=False)
    other = engine.stream(asked(max_new_tokens=60))
    engine.step()
    used = engine.backbone.slots.used
    long = engine.stream(asked(None, token_ids=[5] * 900, max_new_tokens=2))
    for _ in range(2):
        engine.step()
    assert engine.backbone.slots.used > used
    long.cancel()
    engine.step()
    assert long.finished.reason == "cancelled"
    assert engine.backbone.slots.used == used
    assert set(engine.timeline()[-1].handles) == {other.handle}
    other.cancel()
