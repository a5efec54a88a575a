"""The loop: who waits, who runs, what is answered between, and what a fault may break."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import tiny_models
from deciders import QUIET, Scripted, TwoRows
from engine_cases import Build, asked, drained, same_numbers, same_step, shared, untimed
from tiny_models import VOCAB

from model import Busy, Engine, Greedy, Run, Sampling, Started, Step, Waiting
from model.kv_cache import CHUNK, capacity
from model.scheduler import MOST_RUNNING

# questions


LONG_TEXT = "the cat is on the mat " * 80  # of some chunks


@pytest.mark.parametrize("ask", ["score", "look"])
def test_runs_decode_on_while_a_question_is_answered(build: Build, ask: str) -> None:
    engine = build(trace_bytes=0)
    ids = engine.tokenize(asked(LONG_TEXT))
    asked_about = engine.stream(asked(None, token_ids=ids, max_new_tokens=1))
    drained(asked_about)
    engine.loop.kept.shrink(0)
    run = engine.stream(asked(max_new_tokens=900))
    while len(run.steps) < 2:
        run.wait(len(run.steps) + 1, timeout=5)
    order: list[int] = []  # how many tokens each pass took
    forward = engine.backbone.forward

    def watched(feeds: Any, *rest: Any) -> Any:
        order.append(len(feeds[0].token_ids))
        return forward(feeds, *rest)

    engine.backbone.forward = watched
    if ask == "score":
        assert len(engine.score(LONG_TEXT)) == len(ids)
    else:
        same_numbers(asked_about.reweigh(0), asked_about.steps[0])
    run.cancel()
    pieces = [i for i, count in enumerate(order) if count > 1]
    assert len(pieces) == math.ceil(len(ids) / CHUNK) > 2
    assert all(b - a == 2 for a, b in itertools.pairwise(pieces)), "one step between two pieces"


def test_questions_are_answered_in_order_and_without_a_thread(build: Build) -> None:
    engine = build(threaded=False, trace_bytes=0)
    run = engine.stream(asked(max_new_tokens=4))
    engine.step()
    answers = []

    def question(name: str) -> Iterator[None]:
        for _ in range(2):
            yield
            answers.append(name)

    engine.loop._questions.put(question("first"))
    engine.loop.ask(question("second"), 0)
    assert answers == ["first", "first", "second", "second"]
    assert len(run.steps) == 1
    same_numbers(run.reweigh(0), run.steps[0])
    run.cancel()


def test_a_fault_in_a_question_belongs_to_who_asked(engine: Engine) -> None:
    def wrong() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.loop.ask(wrong(), 0)
    assert engine.generate(asked()).finish_reason == "length"


# the queue


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


# the loop


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


# several runs in one pass


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


# a forked process


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("threaded", [True, False])
def test_a_forked_process_decodes_on_its_own(build: Build, threaded: bool) -> None:
    """Although every lock was held, and the thread of the loop is not there."""
    engine = build(threaded=threaded)
    wanted = engine.generate(asked()).token_ids
    run = engine.stream(asked(max_new_tokens=900))
    if threaded:
        run.wait(3, timeout=5)
    reading, writing = os.pipe()
    with engine.loop._turning, engine.trace._lock, engine.runs._lock, run._news:
        child = os.fork()
    if not child:
        try:
            signal.alarm(20)
            assert run.finished.reason == "cancelled"
            assert engine.status().running == 0
            made = engine.generate(asked()).token_ids
            again = engine.stream(asked(max_new_tokens=3))
            assert len(drained(again)) == 5
            assert engine.run(again.handle).reweigh(1, Greedy()).index == 1
            engine.close()
            os.write(writing, pickle.dumps(made))
        except BaseException as error:
            os.write(writing, pickle.dumps(repr(error)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert pickle.loads(told) == wanted
    run.cancel()
    assert drained(run)[-1].reason == "cancelled"  # here it went on
    assert engine.generate(asked()).token_ids == wanted
