"""Strategies of one's own: several rows, several tokens a pass, reports and ends."""

from __future__ import annotations

import logging
import time
from array import array
from dataclasses import dataclass
from typing import Any

import pytest
import tiny_models
import torch
from deciders import NOTE, QUIET, Guessing, Scripted, TwoRows
from engine_cases import Build, asked, drained, same_step, shared, turns
from tiny_models import VOCAB

from model import Finished, Greedy, Started, Step, Waiting, decoding
from model.kv_cache import GRAIN
from model.strategies import Continuation, Decision


def test_more_rows_than_said_end_the_run_alone(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    class Wide(TwoRows):
        rows = 1

    with caplog.at_level(logging.CRITICAL):
        finished = drained(build().stream(asked(strategy=Wide())))[-1]
    assert finished.reason == "error"
    assert "2 rows" in finished.message


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral"])
def test_several_tokens_a_pass_equal_greedy(
    build: Build, architecture: str, bonus: bool, use_cache: bool
) -> None:
    engine = build(architecture, threaded=False)
    ids = engine.tokenize(asked())
    greedy = engine.generate(asked(strategy=Greedy(), max_new_tokens=40))
    engine.loop.kept.shrink(0)
    engine.loop.timeline.clear()
    strategy = Guessing(greedy.token_ids, len(ids), bonus=bonus)
    run = engine.stream(asked(strategy=strategy, max_new_tokens=40, use_cache=use_cache))
    made = run.result()
    assert made.token_ids == greedy.token_ids
    assert made.text == greedy.text
    deciding = [turn for turn in engine.timeline() if turn.written]
    assert len(deciding) < 30  # of 40
    assert sum(turn.written for turn in deciding) == 40
    steps = [event for event in made.events if isinstance(event, Step)]
    for a, b in zip(steps, greedy.events[1:-1], strict=True):
        same_step(a, b)  # to the last bit: however many come, they attend one by one
    work = sum(turn.duration_s for turn in engine.timeline())
    assert sum(step.duration_s for step in steps) <= work
    # The cache that it leaves holds nothing of what was rejected.
    onwards = run.branch(strategy=Greedy(), more=8)
    finished = drained(onwards)[-1]
    longer = build(architecture).generate(asked(strategy=Greedy(), max_new_tokens=48))
    assert tuple(step.token_id for step in onwards.steps) == longer.token_ids
    if use_cache:
        assert finished.reused > len(ids) + 30


@dataclass
class Recorded:
    """A slot that only says how it was cut and copied."""

    length: int
    cut: int | None = None

    def truncate(self, length: int) -> None:
        self.cut = length

    def fork(self, length: int) -> Recorded:
        return Recorded(length)


@pytest.mark.parametrize(
    ("proposed", "append", "good"),
    [
        ((), (5,), 3),
        ((7, 8), (7, 8, 9), 5),
        ((7, 8), (7, 9), 4),
        ((7, 8), (7, 8), 4),  # its newest token is fed again
        ((7, 8), (9,), 3),
        ((7, 8), (7,), 3),
        ((7, 8), (), 2),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_of_what_was_proposed_the_cache_keeps_what_became_text(
    proposed: tuple[int, ...], append: tuple[int, ...], good: int, shared: bool
) -> None:
    row = decoding.Row(array("q", [1, 2, 3]), Recorded(3 + len(proposed)), proposed)
    after = row.go_on(Continuation(0, append, (4,)), shared, 10**9)
    assert list(after.context) == [1, 2, 3, *append]
    assert after.slot.cut == good
    assert (after.slot is row.slot) is not shared
    assert list(row.context) == [1, 2, 3]
    assert list(after.seen) == [1, 2, 3, *append, 4]


def test_going_on_costs_nothing_at_a_long_text() -> None:
    """Nothing of Python's own per token of the context: 8,000 of them would cost 0.3 ms a step."""
    row = decoding.Row(array("q", range(100_000)), Recorded(100_000))
    began = time.perf_counter()
    for _ in range(20):
        row.go_on(Continuation(0, (1,)), False, 10**9)
    assert (time.perf_counter() - began) / 20 < 1e-3


def test_an_end_among_several_tokens_ends_the_run_there(build: Build) -> None:
    greedy = shared().generate(asked(strategy=Greedy(), max_new_tokens=40)).token_ids
    prompt = len(shared().tokenize(asked()))
    strategy = Guessing(greedy, prompt)
    assert shared().generate(asked(strategy=strategy, max_new_tokens=7)).token_ids == greedy[:7]
    end = greedy[10]
    ended = build(ends=(end,)).generate(asked(strategy=strategy, max_new_tokens=40))
    assert ended.token_ids == greedy[: greedy.index(end) + 1]
    assert ended.finish_reason == "eos"


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_rows_that_fork_are_beam_search(build: Build, architecture: str, use_cache: bool) -> None:
    engine, strategy = build(architecture, threaded=False), TwoRows()
    ids = list(engine.tokenize(asked()))
    run = engine.stream(asked(strategy=strategy, max_new_tokens=15, use_cache=use_cache))
    drained(run)
    wanted = tiny_models.model(architecture).generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        num_beams=2,
        num_return_sequences=2,
        do_sample=False,
        max_new_tokens=15,
        pad_token_id=0,
        length_penalty=0.0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    rows = strategy.seen[-1]
    assert [row for _, row in rows] == wanted.sequences.tolist()
    assert [total for total, _ in rows] == pytest.approx(wanted.sequences_scores.tolist(), rel=1e-4)
    parents = [{tuple(row[:-1]) for _, row in rows} for rows in strategy.seen[1:]]
    assert any(len(p) == 1 for p in parents)  # both from one row: it was forked
    assert any(len(p) == 2 for p in parents)


def test_a_decider_that_reports_no_token_ends_at_the_limit(build: Build) -> None:
    engine = build(threaded=False)
    run = engine.stream(asked(strategy=Scripted((QUIET,)), max_new_tokens=5))
    assert [type(event) for event in drained(run)] == [Started, Finished]
    assert (run.finished.reason, run.steps) == ("length", [])
    assert (turns(engine, "prefill"), turns(engine)) == (1, 4)


def test_a_decision_may_tell_more_and_end_the_run(build: Build) -> None:
    choice = Greedy().choose(torch.arange(float(VOCAB)), [1])
    script = (
        Decision((Continuation(0, (5,)), Continuation(0, (6,))), (), (NOTE,)),
        Decision((Continuation(1, (5,)),), (choice,), (NOTE, NOTE)),
        Decision((), (), (NOTE,), "eos"),
    )
    run = build(threaded=False).stream(asked(strategy=Scripted(script)))
    told = [type(event) for event in drained(run)]
    assert told == [Started, Waiting, Step, Waiting, Waiting, Waiting, Finished]
    assert run.finished.reason == "eos"
    assert [step.token_id for step in run.steps] == [VOCAB - 1]


def test_a_decision_that_leaves_no_row_must_end_the_run(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build(threaded=False)
    other = engine.stream(asked())
    with caplog.at_level(logging.CRITICAL):
        finished = drained(engine.stream(asked(strategy=Scripted((QUIET, Decision(()))))))[-1]
    assert finished.reason == "error"
    assert "how the run ended" in finished.message
    assert drained(other)[-1].reason == "length"


@pytest.mark.parametrize("kind", ["guessing", "two rows"])
def test_a_token_is_forced_on_any_strategy(build: Build, kind: str) -> None:
    """Its decider begins behind it, as if the token had stood in the prompt."""
    engine = build(threaded=False)
    run = engine.stream(asked(strategy=Greedy(), max_new_tokens=6))
    drained(run)
    taken = [*run.prompt_ids, *(step.token_id for step in run.steps[:3]), 9]
    if kind == "guessing":
        rest = build().generate(asked(None, token_ids=taken, strategy=Greedy(), max_new_tokens=9))
        oracle = tuple(taken[len(run.prompt_ids) :]) + rest.token_ids
        strategy: Any = Guessing(oracle, len(run.prompt_ids))
    else:
        strategy = TwoRows()
        rest = build().generate(asked(None, token_ids=taken, strategy=TwoRows(), max_new_tokens=9))
    branch = run.branch(3, token_id=9, strategy=strategy, more=10)
    assert drained(branch)[-1].reason == "length"
    assert branch.steps[3].forced
    assert branch.steps[3].choice == run.steps[3].token_id
    assert tuple(step.token_id for step in branch.steps[4:]) == rest.token_ids


def test_a_strategy_that_takes_no_forced_token_fails_alone(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    class Unforced(Scripted):
        def choose(self, logits: torch.Tensor, context: Any) -> Any:
            raise TypeError("one token alone says nothing here")

    engine = build(threaded=False)
    run = engine.stream(asked())
    drained(run)
    other = engine.stream(asked())
    with caplog.at_level(logging.CRITICAL):
        finished = drained(run.branch(2, token_id=7, strategy=Unforced((QUIET,))))[-1]
    assert (finished.reason, "says nothing here" in finished.message) == ("error", True)
    assert drained(other)[-1].reason == "length"


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_hidden_states_are_what_the_logits_are_made_of(build: Build, architecture: str) -> None:
    proposing = Decision((Continuation(0, (5,), (6, 7)),))
    strategy = Scripted((QUIET, proposing, QUIET), wants_hidden=True)
    drained(build(architecture).stream(asked(strategy=strategy, max_new_tokens=4)))
    head = tiny_models.model(architecture).get_output_embeddings()
    assert [states.shape[0] for ((states, _),) in strategy.hidden] == [1, 1, 3, 1]
    for ((states, logits),) in strategy.hidden:
        with torch.inference_mode():
            torch.testing.assert_close(head(states), logits)
    unasked = Scripted((QUIET,))
    drained(build(architecture).stream(asked(strategy=unasked, max_new_tokens=2)))
    assert all(states is None for ((states, _),) in unasked.hidden)


def test_guesses_beyond_the_limit_are_left_out(build: Build) -> None:
    """There is no room for them in what was promised to the run."""
    ids = tuple(5 + i % 50 for i in range(GRAIN - 8))
    oracle = (
        shared()
        .generate(asked(None, token_ids=ids, strategy=Greedy(), max_new_tokens=20))
        .token_ids
    )
    engine = build(threaded=False, cache_bytes=GRAIN * 256)
    fed, forward = [], engine.backbone.forward

    def watched(feeds: Any, *rest: Any) -> Any:
        made = forward(feeds, *rest)
        fed.append(feeds[0].slot.length)
        assert engine.status().cache_bytes <= GRAIN * 256
        return made

    engine.backbone.forward = watched
    strategy = Guessing(oracle, len(ids), guesses=6)
    run = engine.stream(asked(None, token_ids=ids, strategy=strategy, max_new_tokens=7))
    assert run.result().token_ids == oracle[:7]
    assert max(fed) <= len(ids) + 7
