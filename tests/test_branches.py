"""What is done with the steps of a run: branches, other settings, fresh draws."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from engine_cases import Build, asked, drained, same_numbers, same_step, shared, untimed
from tiny_models import VOCAB

from model import Engine, FieldError, Gone, Greedy, Sampling, Step
from model.strategies import Strategy

# branches


@pytest.mark.parametrize("strategy", [Greedy(), Sampling(temperature=1.4, seed=3)])
@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_continued_run_equals_the_longer_one(strategy: Strategy, cut: int) -> None:
    whole = shared().generate(asked(strategy=strategy, max_new_tokens=24))
    short = shared().stream(asked(strategy=strategy, max_new_tokens=cut))
    drained(short)
    longer = short.branch(more=24 - cut)
    events = drained(longer)
    assert tuple(step.token_id for step in longer.steps) == whole.token_ids
    assert events[-1].text == whole.text
    assert events[0].inherited == cut
    assert events[0].parent == longer.parent == short.handle
    assert [e.index for e in events if isinstance(e, Step)] == list(range(cut, 24))
    assert longer.steps[:cut] == short.steps
    for a, b in zip(longer.steps, whole.events[1:-1], strict=True):
        same_step(a, b)
    assert events[-1].reused >= len(longer.prompt_ids) + cut - 1


def test_a_fork_forces_one_token_and_goes_on() -> None:
    run = shared().stream(asked())
    drained(run)
    other = next(c.token_id for c in run.steps[4].candidates if c.token_id != run.steps[4].token_id)
    fork = run.fork(4, other)
    events = drained(fork)
    assert fork.steps[:4] == run.steps[:4]
    forced = fork.steps[4]
    assert (forced.token_id, forced.forced) == (other, True)
    assert forced.choice == run.steps[4].token_id  # what the strategy would have taken
    assert (forced.draw, forced.span) == (run.steps[4].draw, run.steps[4].span)
    assert not any(step.forced for step in fork.steps[5:])
    assert len(fork.steps) == 12
    assert events[-1].text == "".join(step.text for step in fork.steps)
    # The rest is what the model writes after that text.
    ids = [*run.prompt_ids, *(step.token_id for step in fork.steps[:5])]
    after = shared().generate(asked(None, token_ids=ids, max_new_tokens=7))
    assert after.token_ids == tuple(step.token_id for step in fork.steps[5:])


def test_forcing_a_token_that_was_cut() -> None:
    run = shared().stream(asked(strategy=Sampling(top_k=1, seed=1), num_candidates=VOCAB))
    drained(run)
    cut = run.steps[0].candidates[-1]
    assert cut.cut_by == "top_k"
    fork = run.fork(0, cut.token_id)
    drained(fork)
    assert fork.steps[0].token_id == cut.token_id
    assert fork.steps[0].final_prob == 0.0
    assert fork.steps[0].rank == VOCAB


def test_a_branch_under_other_settings_keeps_the_seed() -> None:
    run = shared().stream(asked())
    drained(run)
    branch = run.branch(3, strategy=Sampling(top_k=5))
    assert drained(branch)[0].seed == 7
    assert branch.steps[:3] == run.steps[:3]
    assert branch.steps[3].draw == run.steps[3].draw
    assert branch.steps[3].kept == 5
    greedy = run.branch(3, strategy=Greedy())
    assert drained(greedy)[0].seed is None
    back = greedy.branch(3, strategy=Sampling())
    assert drained(back)[0].seed == 7


@pytest.mark.parametrize("first", [Greedy(), Sampling(temperature=0), Sampling(), Sampling(seed=5)])
def test_the_draw_that_a_what_if_announces_is_the_one_that_a_branch_makes(first: Strategy) -> None:
    """Also where the run itself drew nothing, and after a branch that changed the seed."""
    run = shared().stream(asked(strategy=first))
    drained(run)
    reseeded = run.branch(3, strategy=Sampling(seed=99))
    drained(reseeded)
    for parent, index in ((run, 0), (run, 6), (reseeded, 1), (reseeded, 6)):
        for what_if in (Sampling(temperature=1.7), Sampling(top_k=9), Sampling(seed=3)):
            announced = parent.reweigh(index, what_if)
            branch = parent.branch(index, strategy=what_if, more=1)
            drained(branch)
            step = branch.steps[index]
            assert (step.token_id, step.draw, step.span) == (
                announced.choice,
                announced.draw,
                announced.span,
            )
    assert run.seed == (first.seed or run.seed)
    assert {run.branch(2).seed, run.branch(2, strategy=Greedy()).seed} == {run.seed}
    assert reseeded.branch(5, strategy=Sampling()).seed == reseeded.seed == 99
    others = {shared().stream(asked(strategy=Greedy())).seed for _ in range(3)}
    assert len(others) == 3


def test_the_limit_of_a_branch() -> None:
    run = shared().stream(asked(max_new_tokens=6))
    drained(run)
    assert len(drained(run.branch(2))) == 6  # Started, four steps, Finished
    assert len(drained(run.branch(6))) == 8  # as many again
    assert len(drained(run.branch(2, more=1))) == 3
    with pytest.raises(FieldError):
        run.branch(2, more=0)


def test_places_that_are_gone() -> None:
    run = shared().stream(asked(max_new_tokens=3))
    drained(run)
    for at in (-1, 4, 10**30, True, 1.0, "1"):
        with pytest.raises(Gone):
            run.branch(at)
    for index in (-1, 3, 10**5000):
        with pytest.raises(Gone):
            run.step(index)


@pytest.mark.parametrize("token_id", [-1, VOCAB, 1.5, "1", True])
def test_tokens_that_are_none(token_id: Any) -> None:
    run = shared().stream(asked(max_new_tokens=3))
    drained(run)
    with pytest.raises(FieldError) as caught:
        run.fork(1, token_id)
    assert caught.value.field == "token_id"


def test_a_branch_of_a_branch_of_a_running_run(engine: Engine) -> None:
    run = engine.stream(asked(max_new_tokens=200))
    seen = 0
    while len(run.steps) < 5:
        seen += len(run.wait(seen, timeout=5))
    one = run.branch(4, token_id=9, more=5)
    drained(one)
    two = one.branch(7, token_id=11)
    run.cancel()
    drained(two)
    assert [s.token_id for s in two.steps[:4]] == [s.token_id for s in run.steps[:4]]
    assert two.steps[4].token_id == 9
    assert two.steps[7].token_id == 11


# what can be asked of a step


OTHERS = [
    Greedy(),
    Greedy(repetition_penalty=1.5, no_repeat_ngram_size=1),
    Sampling(temperature=0.3),
    Sampling(temperature=0),
    Sampling(top_k=3, seed=99),
    Sampling(top_p=0.5, min_p=0.01, typical_p=0.9, repetition_penalty=1.2),
]


@pytest.mark.parametrize("trace_bytes", [2**28, 4 * VOCAB * 3, 0])
def test_reweigh_is_what_a_run_with_those_settings_reports(build: Build, trace_bytes: int) -> None:
    """All fields, exactly; also where the logits were given up and are computed again."""
    engine = build(trace_bytes=trace_bytes, threaded=False)
    run = engine.stream(asked(max_new_tokens=9))
    drained(run)
    assert engine.status().trace_bytes <= trace_bytes
    for index in (0, 1, 4, 8):
        assert untimed(run.reweigh(index, num_candidates=5)) == untimed(run.steps[index])
        for strategy in OTHERS:
            # The same token forced under those settings, so that the text is the same.
            branch = engine.branch(run, index, run.steps[index].token_id, strategy, more=1)
            drained(branch)
            reported = replace(branch.steps[index], forced=False)
            assert untimed(run.reweigh(index, strategy, num_candidates=5)) == untimed(reported)
            more = run.reweigh(index, strategy, num_candidates=VOCAB)
            assert set(reported.candidates) <= set(more.candidates)
    assert engine.status().trace_bytes <= trace_bytes


@pytest.mark.parametrize("strategy", OTHERS, ids=str)
def test_reweigh_of_the_first_step(build: Build, strategy: Strategy) -> None:
    """As a fresh run on another engine would report it."""
    engine = build()
    run = engine.stream(asked(max_new_tokens=1))
    drained(run)
    fresh = build().generate(asked(strategy=strategy, max_new_tokens=1)).events[1]
    reweighed = run.reweigh(0, strategy, num_candidates=5)
    if strategy.seed is None:  # then the run's own seed counts
        assert reweighed.draw in (run.steps[0].draw, None)
    else:
        assert (reweighed.draw, reweighed.span) == (fresh.draw, fresh.span)
    for name in ("entropy", "final_entropy", "kept", "kept_prob"):
        assert getattr(reweighed, name) == getattr(fresh, name)


def test_reweigh_runs_no_model(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build()
    run = engine.stream(asked())
    drained(run)
    monkeypatch.setattr(engine.backbone, "forward", lambda *_: pytest.fail("the model ran"))
    before = engine.timeline()
    assert run.reweigh(3, Sampling(top_k=2)).kept == 2
    assert sum(run.redraw(3, 50).values()) == 50
    assert engine.timeline() == before


def test_a_step_that_was_given_up_costs_one_pass_over_its_prefix(build: Build) -> None:
    engine = build(trace_bytes=0)
    run = engine.stream(asked(None, token_ids=[3] * 300, max_new_tokens=4))
    drained(run)
    engine.loop.kept.shrink(0)  # nothing is left that would help
    for index in range(4):
        same_numbers(run.reweigh(index), run.steps[index])


def test_redraw_tallies_fresh_draws() -> None:
    run = shared().stream(asked(strategy=Sampling(top_k=4, seed=1)))
    drained(run)
    counts = run.redraw(2, 4000)
    step = run.reweigh(2, num_candidates=VOCAB)
    probs = {c.token_id: c.final_prob for c in step.candidates if c.final_prob}
    assert counts.total() == 4000
    assert set(counts) <= set(probs)
    for token_id, prob in probs.items():
        deviation = (prob * (1 - prob) / 4000) ** 0.5
        assert abs(counts[token_id] / 4000 - prob) < 5 * deviation
    assert run.redraw(2, 4000) != counts
    assert run.redraw(2, 3, Greedy()) == Counter({run.reweigh(2, Greedy()).choice: 3})
