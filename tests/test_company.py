"""Company: a request's outcome depends on its own inputs alone, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import tiny_models
from deciders import Guessing, TwoRows
from engine_cases import drained, same_numbers, same_step
from tiny_models import ARCHITECTURES, VOCAB

from model import Engine, Greedy, Request, Run, Sampling, Step
from model.kv_cache import CHUNK

EVERYTHING = {
    "temperature": 1.2,
    "top_k": 100,
    "top_p": 0.98,
    "min_p": 0.001,
    "typical_p": 0.95,
    "repetition_penalty": 1.2,
    "no_repeat_ngram_size": 3,
}
LENGTHS = (1, 2, 7, 30, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 11, 5 * CHUNK + 3)


def strategy(dice: random.Random) -> Any:
    return dice.choice(
        (
            Greedy(),
            Greedy(repetition_penalty=1.3, no_repeat_ngram_size=2),
            Sampling(seed=dice.randrange(99)),
            Sampling(seed=dice.randrange(99), **EVERYTHING),
            TwoRows(),
        )
    )


def request(dice: random.Random, vocab: int = VOCAB) -> Request:
    """Some have a beginning in common, and some guess at what is to come."""
    length, base = dice.choice(LENGTHS), dice.choice((3, 5, 7))
    ids = [(base * i * i + i // 50 * dice.choice((0, 0, 1))) % vocab for i in range(length)]
    chosen = strategy(dice)
    if vocab == VOCAB and dice.random() < 0.15:
        oracle = tuple(dice.randrange(vocab) for _ in range(20))
        chosen = Guessing((*ids, *oracle), length)
    return Request(
        token_ids=ids,
        strategy=chosen,
        max_new_tokens=dice.randrange(1, 13),
        num_candidates=4,
        use_cache=dice.random() < 0.85,
    )


def alone(engine: Engine, asked: Request) -> tuple[Any, ...]:
    """On an engine where nobody else is or ever was."""
    engine.loop.kept.shrink(0)
    run = engine.stream(asked)
    drained(run)
    return run.steps


def compare(engine: Engine, run: Run, wanted: list[Step]) -> None:
    assert run.finished.reason == "length"
    assert len(run.steps) == len(wanted)
    for a, b in zip(run.steps, wanted, strict=True):
        if engine.backbone.alone:
            same_step(a, b)
        else:
            same_numbers(a, b)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    """For those who are alone."""
    yield (made := {name: tiny_models.engine(name, threaded=False) for name in ARCHITECTURES})
    for engine in made.values():
        engine.close()


@pytest.mark.parametrize("narrow", [False, True], ids=["room for all", "little room"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_alone_or_among_31_others(
    engines: dict[str, Engine], architecture: str, narrow: bool
) -> None:
    """Joining at any turn; also where there isn't room for all, and some are paused meanwhile."""
    dice, lonely = random.Random(ARCHITECTURES.index(architecture)), engines[architecture]
    asked = [request(dice) for _ in range(32)]
    wanted = [alone(lonely, one) for one in asked]
    budget = {"cache_bytes": 2000 * lonely.backbone.layout.bytes_per_token} if narrow else {}
    engine = tiny_models.engine(architecture, threaded=False, **budget)
    runs = []
    for one in asked:
        runs.append(engine.stream(one))
        for _ in range(dice.choice((0, 0, 0, 1, 2))):
            engine.step()
        if dice.random() < 0.2:
            dice.choice(runs).pause(dice.randrange(3))
    for _ in range(dice.randrange(9)):
        engine.step()
    for run in runs:
        run.resume()
    while engine.step():
        pass
    assert max(len(turn.handles) for turn in engine.timeline()) > (3 if narrow else 12)
    for run, steps in zip(runs, wanted, strict=True):
        compare(engine, run, steps)


def test_other_architectures_too(build: Any) -> None:
    """Where rows can't share a pass, they share the engine all the same."""
    for architecture in tiny_models.UNPACKED:
        dice, lonely = random.Random(3), build(architecture, threaded=False)
        engine = build(architecture, threaded=False)
        asked = [request(dice) for _ in range(12)]
        runs = [engine.stream(one) for one in asked]
        while engine.step():
            pass
        for run, one in zip(runs, asked, strict=True):
            compare(engine, run, alone(lonely, one))


def test_in_a_thread_of_its_own(build: Any, engines: dict[str, Engine]) -> None:
    """As it comes: whoever is there when the loop looks."""
    dice, engine = random.Random(4), build()
    asked = [request(dice) for _ in range(32)]
    made = engine.generate_many(asked)
    for one, result in zip(asked, made, strict=True):
        steps = [event for event in result.events if isinstance(event, Step)]
        for a, b in zip(steps, alone(engines["llama"], one), strict=True):
            (same_step if engine.backbone.alone else same_numbers)(a, b)


@pytest.mark.default_model
def test_the_default_model() -> None:
    with Engine.load(precision="fp32", device="cpu", threaded=False) as engine:
        dice, runs = random.Random(1), []
        asked = [
            Request(
                token_ids=[(11 * i * i + n) % 20_000 for i in range(length)],
                strategy=Sampling(seed=n, **EVERYTHING) if n % 2 else Greedy(),
                max_new_tokens=12,
                num_candidates=4,
                ignore_eos=True,
            )
            for n, length in enumerate((1, 5, 12, 40, 63, 64, 70, 150))
        ]
        for one in asked:
            runs.append(engine.stream(one))
            for _ in range(dice.randrange(3)):
                engine.step()
        while engine.step():
            pass
        for run, one in zip(runs[::2] + runs[7:], asked[::2] + asked[7:], strict=True):
            compare(engine, run, alone(engine, one))
