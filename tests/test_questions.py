"""Questions to the model: answered between two steps of the runs, in order, with their faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from engine_cases import Build, asked, drained, same_numbers

from model import Engine
from model.kv_cache import CHUNK

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
