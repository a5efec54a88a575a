"""Faults: they end whose they are, and the engine goes on for everybody else."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import tiny_models
from deciders import Faulty, TwoRows
from engine_cases import Build, as_alone, asked, drained, end_as_alone, failing, nobody, shared
from tiny_models import VOCAB

from model import Engine, Greedy, Run, Sampling
from model.kv_cache import CHUNK

pytestmark = pytest.mark.usefixtures("faults_are_meant")
MINE = VOCAB - 1  # a token of prompts with a fault


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
    end_as_alone(*others)
    assert nobody(engine)
    wanted = shared().generate(asked()).token_ids
    assert engine.generate(asked()).token_ids == wanted


# in a pass


def failing_for(engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Passes in which `MINE` is fail; returns how many runs the failed ones had."""
    failed: list[int] = []

    def mine(_: int, feeds: Any, *__: Any) -> bool:
        found = any(MINE in feed.token_ids for feed in feeds)
        if found:
            failed.append(len(feeds))
        return found

    # The cache is half written when it fails.
    failing(monkeypatch, engine.backbone, "forward", error, at=mine, late=True)
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
    end_as_alone(*good)
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
    failed = failing(monkeypatch, engine.backbone, "forward", ArithmeticError, at=2, late=True)
    end_as_alone(*runs)
    assert failed == [2]


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
    end_as_alone(good)


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
