"""Faults: they end whose they are, and the engine goes on for everybody else."""

from __future__ import annotations

import copy
import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tiny_models
from deciders import Faulty, Scripted, TwoRows
from engine_cases import Build, asked, drained, held, same_step, shared
from tiny_models import VOCAB

from model import Engine, Greedy, Run, Sampling, decoding
from model.kv_cache import CHUNK, Layout, Slot, capacity
from model.strategies import Continuation, Decision

MINE = VOCAB - 1  # a token of prompts with a fault


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Faults are logged, and here they are meant."""
    with caplog.at_level(logging.CRITICAL + 1):
        yield


def nobody(engine: Engine) -> bool:
    """Whether nobody has anything of the engine any more."""
    if not engine.threaded:
        engine.step()
    status, slots = engine.status(), engine.backbone.slots
    return status.running == status.waiting == slots.used == engine.loop.scheduler.reserved == 0


def as_alone(run: Run) -> None:
    """All numbers are those of the same request on an engine where nothing ever happened."""
    assert run.finished.reason == "length", run.finished.message
    shared().loop.kept.shrink(0)
    for a, b in zip(run.steps, shared().generate(run.request).events[1:-1], strict=True):
        same_step(a, b)


# in a strategy


@pytest.mark.parametrize(("where", "steps"), [("decider", 0), ("decide", 2)])
@pytest.mark.parametrize("threaded", [True, False])
def test_a_fault_in_a_strategy_ends_that_run_alone(
    build: Build, where: str, steps: int, threaded: bool
) -> None:
    engine = build(threaded=threaded)
    others = [engine.stream(asked(max_new_tokens=30)) for _ in range(2)]
    faulty = engine.stream(asked(strategy=Faulty(where)))
    finished = drained(faulty)[-1]
    assert finished.reason == "error"
    assert "no decider" in finished.message or "a bug in a strategy" in finished.message
    assert len(faulty.steps) == steps
    assert finished.text == "".join(step.text for step in faulty.steps)
    with pytest.raises(RuntimeError, match=r"bug|decider"):
        faulty.result()
    for run in others:
        drained(run)
        as_alone(run)
    assert nobody(engine)
    wanted = shared().generate(asked()).token_ids
    assert engine.generate(asked()).token_ids == wanted


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
    fork_slot, left = Slot.fork, [forks]

    def failing(slot: Slot, *args: int) -> Slot:
        left[0] -= 1
        if not left[0]:
            raise MemoryError
        return fork_slot(slot, *args)

    monkeypatch.setattr(Slot, "fork", failing)
    engine.step()
    assert run.finished.reason == "error"
    assert run.finished.message.startswith("MemoryError")
    drained(other)
    as_alone(other)
    assert nobody(engine)


def test_no_memory_for_a_report_loses_no_step_in_silence(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    runs = [engine.stream(asked()) for _ in range(2)]
    engine.step()
    keep, left = engine.trace.keep, [1]

    def failing(*args: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise MemoryError
        keep(*args)

    monkeypatch.setattr(engine.trace, "keep", failing)
    for run in runs:
        drained(run)
    first, second = runs
    as_alone(second)
    assert (first.finished.reason, len(first.steps)) == ("error", 1)


# in a pass


def failing_for(engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Passes in which `MINE` is fail; returns how many runs the failed ones had."""
    forward, failed = engine.backbone.forward, []

    def failing(feeds: Any, *rest: Any) -> Any:
        outputs = forward(feeds, *rest)  # the cache is half written when it fails
        if any(MINE in feed.token_ids for feed in feeds):
            failed.append(len(feeds))
            raise error
        return outputs

    monkeypatch.setattr(engine.backbone, "forward", failing)
    return failed


@pytest.mark.parametrize("error", [MemoryError("too much"), ArithmeticError("too much")])
@pytest.mark.parametrize("threaded", [True, False])
def test_a_fault_in_the_model_ends_that_run_alone(
    build: Build, monkeypatch: pytest.MonkeyPatch, error: Exception, threaded: bool
) -> None:
    engine = build(threaded=threaded)
    failed = failing_for(engine, monkeypatch, error)
    ids = [5] * CHUNK + [6, MINE]
    good = [engine.stream(asked(max_new_tokens=30, strategy=s)) for s in (Greedy(), TwoRows())]
    bad = engine.stream(asked(None, token_ids=ids))
    finished = drained(bad)[-1]
    wanted = f"{type(error).__name__}: too much"
    assert (finished.reason, finished.message, bad.steps) == ("error", wanted, [])
    for run in good:
        drained(run)
        as_alone(run)
    assert failed[-1] == 1  # it was alone when it was given up
    assert nobody(engine)
    monkeypatch.undo()
    again = engine.generate(asked(None, token_ids=ids))
    assert again.token_ids == shared().generate(asked(None, token_ids=ids)).token_ids
    assert again.events[-1].reused == 0


def test_a_pass_that_fails_once_costs_nobody_anything(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes on alone, with what it had."""
    engine = build(threaded=False)
    runs = [engine.stream(asked(strategy=s)) for s in (Greedy(), Sampling(seed=3), TwoRows())]
    engine.step()
    forward, left = engine.backbone.forward, [2]

    def failing(*args: Any) -> Any:
        outputs = forward(*args)
        left[0] -= 1
        if not left[0]:
            raise ArithmeticError
        return outputs

    monkeypatch.setattr(engine.backbone, "forward", failing)
    for run in runs:
        drained(run)
        as_alone(run)


def test_a_pass_that_always_fails_ends_the_runs_in_it_and_no_others(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    runs = [engine.stream(asked()) for _ in range(3)]
    engine.step()
    runs[1].pause()
    with monkeypatch.context() as broken:
        broken.setattr(engine.backbone, "forward", lambda *_: 1 / 0)
        engine.step()
    runs[1].resume()
    assert [drained(run)[-1].reason for run in runs] == ["error", "length", "error"]
    as_alone(runs[1])


# logits that are no numbers


def poisoned() -> Engine:
    """A model in which everything that has seen `MINE` is NaN."""
    model = copy.deepcopy(tiny_models.model())
    model.get_input_embeddings().weight.data[MINE] = float("nan")
    return Engine(model, tiny_models.tokenizer(), threaded=False)


def test_logits_that_are_no_numbers_end_the_run_with_a_message() -> None:
    engine = poisoned()
    good = engine.stream(asked())
    finished = drained(engine.stream(asked(None, token_ids=[5, MINE])))[-1]
    assert finished.reason == "error"
    assert "NaN" in finished.message
    assert engine.status().kept_bytes == 0  # nobody is to start from there
    drained(good)
    as_alone(good)


def test_what_is_no_number_is_left_to_nobody() -> None:
    """Rows change hands: after a fault, after a prompt was left half way, and when a row moves."""
    engine, dice = poisoned(), random.Random(5)
    healthy: list[Run] = []
    for n in range(120):
        ids = [dice.randrange(MINE) for _ in range(dice.choice((3, 40, 90, 200, 320)))]
        if n % 3 == 0:
            ids[dice.randrange(len(ids))] = MINE
        more = dice.randrange(1, 9)
        run = engine.stream(asked(None, token_ids=ids, max_new_tokens=more))
        if n % 3:
            healthy.append(run)
        for _ in range(dice.randrange(3)):
            engine.step()
        if not n % 3 and dice.random() < 0.5:
            run.cancel()
    for run in healthy:
        drained(run)
        if MINE not in (step.token_id for step in run.steps):  # by its own choice
            as_alone(run)
    assert sum(run.finished.reason == "length" for run in healthy) > 60


# no memory


def admission(engine: Engine, monkeypatch: pytest.MonkeyPatch, fails: Any) -> list[int]:
    """`Layout.zeros` raises where `fails(number of the call, rows, tokens)`; returns the calls."""
    zeros, calls = Layout.zeros, []

    def narrow(layout: Layout, rows: int, tokens: int) -> Any:
        calls.append(tokens)
        if fails(len(calls), rows, tokens):
            raise MemoryError("no room")
        return zeros(layout, rows, tokens)

    monkeypatch.setattr(Layout, "zeros", narrow)
    return calls


def test_no_memory_at_admission_shrinks_the_budget_and_tries_again(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    before = engine.status().cache_budget
    runs = [engine.stream(asked(max_new_tokens=20))]
    engine.step()
    runs.append(engine.stream(asked(max_new_tokens=90)))  # another size, another bank
    calls = admission(engine, monkeypatch, lambda number, *_: number == 1)
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
        admission(engine, none, lambda *_: True)
        runs = [engine.stream(asked(max_new_tokens=n)) for n in (20, 90, 200)]
        for run in runs:
            assert drained(run)[-1].message == "MemoryError: no room"
        assert nobody(engine)
    run = engine.stream(asked())
    drained(run)
    as_alone(run)


def test_who_can_never_fit_is_told_and_nobody_else_suffers(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    admission(engine, monkeypatch, lambda _, rows, tokens: rows * tokens > 4 * CHUNK)
    monkeypatch.setattr("model.kv_cache.MOST_ROWS", 1)
    small = [engine.stream(asked(max_new_tokens=30)) for _ in range(3)]
    engine.step()
    large = engine.stream(asked(max_new_tokens=600))
    later = [engine.stream(asked(max_new_tokens=30)) for _ in range(3)]
    assert drained(large)[-1].reason == "error"
    for run in small + later:
        drained(run)
        as_alone(run)
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
    forward, calls = engine.backbone.forward, [0]

    def failing(feeds: Any, *rest: Any) -> Any:
        outputs = forward(feeds, *rest)
        calls[0] += 1
        if calls[0] % 3 == 0 and len(feeds) > 2:
            raise MemoryError
        return outputs

    monkeypatch.setattr(engine.backbone, "forward", failing)
    for run in runs:
        drained(run)
        as_alone(run)
    assert engine.status().cache_budget < before
    assert nobody(engine)


@pytest.mark.parametrize("strategy", [Greedy(), TwoRows()], ids=["one row", "two rows"])
def test_no_memory_to_keep_what_a_run_had_costs_only_that(
    build: Build, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    engine = build(threaded=False, cache_bytes=3 * capacity(40) * 256)

    def none(_: Slot) -> None:
        raise MemoryError

    monkeypatch.setattr(Slot, "park", none)
    paused = engine.stream(asked(max_new_tokens=20, strategy=strategy))
    engine.step()
    paused.pause()
    others = [engine.stream(asked(max_new_tokens=20)) for _ in range(3)]
    for run in others:
        drained(run)
        as_alone(run)
    paused.resume()
    drained(paused)
    as_alone(paused)
    assert nobody(engine)
    assert engine.status().kept_bytes == 0


# in the loop itself


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
    act = getattr(holder, where)

    def dies(*_: Any) -> None:
        setattr(holder, where, act)
        raise SystemExit

    setattr(holder, where, dies)
    finished = drained(run)[-1]
    assert finished.reason == "error"
    assert "started again" in finished.message
    drained(waiting)
    as_alone(waiting)  # who had not begun lost nothing
    assert engine.status().restarts == 1
    assert engine.loop._thread is not old
    assert len(drained(engine.stream(asked()))) == 14
    old.join(5)
    assert not old.is_alive()
    assert nobody(engine)


def test_a_loop_that_dies_again_and_again(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build()

    def dies(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as broken:
        broken.setattr(engine.backbone, "forward", dies)
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
    following = engine.loop.scheduler.next

    def failing(now: float) -> Any:
        monkeypatch.setattr(engine.loop.scheduler, "next", following)
        return 1 / 0

    monkeypatch.setattr(engine.loop.scheduler, "next", failing)
    drained(run)
    as_alone(run)
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
