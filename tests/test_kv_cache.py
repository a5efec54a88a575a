"""The KV cache: its budget, what is kept for later, and that nobody's result knows of it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import tiny_models
from deciders import Guessing, TwoRows
from engine_cases import EXACT, Build, asked, drained, held, same_numbers, same_step
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB

from model import Engine, Greedy, Request, Run, Sampling, Step
from model.kv_cache import CHUNK, Bank, Parked, Slot, capacity
from model.strategies import Strategy


def test_the_cache_budget_holds_at_every_step(build: Build) -> None:
    budget = capacity(120) * 256 * 2
    engine = build(cache_bytes=budget, threaded=False)
    runs = [engine.stream(asked(f"{i} " * (5 + i), max_new_tokens=10 + 3 * i)) for i in range(12)]
    most = 0
    while engine.step():
        most = max(most, held(engine))
        assert held(engine) <= budget
    assert most > budget // 2
    assert all(run.finished.reason == "length" for run in runs)


class Peak:
    """The most bytes of all caches that existed at once, whoever held them; counted from `watch`.

    An engine that is being made tries its model out, with caches that nobody counts.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.nbytes = monkeypatch, 0
        self._alive: list[weakref.ref] = []

    def watch(self) -> None:
        made, park = Bank.__init__, Slot.park

        def bank(new: Bank, *args: Any) -> None:
            made(new, *args)
            self._seen(new)

        def parked(slot: Slot) -> Parked:
            copied = park(slot)
            self._seen(copied)
            return copied

        self.monkeypatch.setattr(Bank, "__init__", bank)
        self.monkeypatch.setattr(Slot, "park", parked)

    def _seen(self, new: Bank | Parked) -> None:
        self._alive = [there for there in self._alive if there() is not None]
        self._alive.append(weakref.ref(new))
        self.nbytes = max(self.nbytes, sum(_bytes(there()) for there in self._alive))


def _bytes(holder: Bank | Parked | None) -> int:
    return sum(k.nbytes + v.nbytes for k, v in holder.layers) if holder is not None else 0


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Peak:
    return Peak(monkeypatch)


@pytest.mark.parametrize("shared_prompts", [True, False])
def test_the_cache_budget_holds_whoever_needs_it(
    build: Build, peak: Peak, shared_prompts: bool
) -> None:
    """Several rows, kept caches, questions: all together; after each turn, and at every moment
    but for the one copy that is just being made."""
    budget = capacity(150) * 256 * 4
    engine = build(cache_bytes=budget, threaded=False, trace_bytes=0)
    peak.watch()
    runs: list[Run] = []
    for n in range(10):
        prompt = "once upon a time" if shared_prompts else f"{n} upon a time"
        strategy = TwoRows() if n % 2 else Sampling(seed=n)
        runs.append(engine.stream(asked(prompt, strategy=strategy, max_new_tokens=10 * n + 5)))
        if n % 3 == 2:
            drained(runs[-3])
            runs[-3].reweigh(3)
            drained(runs[-3].branch(2, more=7))
            engine.score("the cat is on the mat", num_candidates=1)
        assert held(engine) <= budget
    while engine.step():
        assert held(engine) <= budget
    assert {run.finished.reason for run in runs} == {"length"}
    assert budget // 2 < peak.nbytes <= budget + capacity(110) * 256


def test_a_question_waits_for_no_run_and_takes_its_own_cache_alone(
    build: Build, peak: Peak
) -> None:
    budget = capacity(150) * 256
    engine = build(cache_bytes=budget, threaded=False, trace_bytes=0)
    peak.watch()
    first = engine.stream(asked(max_new_tokens=100))
    drained(first)
    paused = engine.stream(asked("x", max_new_tokens=149))
    engine.step()
    paused.pause()
    assert len(engine.score("the cat is on the mat " * 9, num_candidates=1)) > 80
    first.reweigh(99)
    assert engine.status().kept_bytes == 0  # all is promised to the run that is paused
    assert budget < peak.nbytes <= 2 * budget
    paused.cancel()


def test_a_prompt_that_is_known_is_not_computed_again(build: Build) -> None:
    """In whole chunks, so that every number is what it would have been without a cache."""
    engine = build()
    ids = [(11 * i) % VOCAB for i in range(2 * CHUNK + 60)]

    def again(token_ids: list[int], **options: Any) -> int:
        request = asked(None, token_ids=token_ids, max_new_tokens=3, **options)
        made = engine.generate(request)
        alone = build().generate(request)
        for a, b in zip(made.events[1:-1], alone.events[1:-1], strict=True):
            same_step(a, b)
        return made.events[-1].reused

    assert again(ids) == 0
    assert again(ids) == 2 * CHUNK
    assert again([*ids, 3, 4]) == 2 * CHUNK
    assert again(ids[: 2 * CHUNK + 1]) == 2 * CHUNK
    assert again(ids[: 2 * CHUNK]) == CHUNK  # the last token must be run for its logits
    assert again([*ids[: CHUNK + 9], 1, 2]) == CHUNK
    assert again([99, *ids]) == 0
    assert again(ids, use_cache=False) == 0


def test_without_a_cache_everything_is_computed_at_every_step(build: Build) -> None:
    """The text up to there, in as many turns as it takes."""
    engine = build(threaded=False)
    for _ in range(2):  # also where a run before has had the same prompt
        run = engine.stream(asked(max_new_tokens=5, use_cache=False))
        engine.loop.timeline.clear()
        drained(run)
        run_again, costs = 0, []
        for turn in engine.timeline():
            run_again += turn.tokens
            if turn.written:
                costs.append(run_again)
                run_again = 0
        assert costs == [len(run.prompt_ids) + n for n in range(5)]


def test_a_run_written_on_from_is_not_computed_again(build: Build) -> None:
    engine = build()
    run = engine.stream(asked(max_new_tokens=10))
    drained(run)
    known = len(run.prompt_ids)
    for at in (10, 7, 1):
        assert drained(run.branch(at, more=2))[-1].reused == known + at - 1
    assert drained(run.branch(0, more=2))[-1].reused == 0  # a short prompt, to be run as one


def test_least_recently_used_caches_go_first(build: Build) -> None:
    length = CHUNK + 1
    # Room for three that are kept, or for two beside one that runs.
    engine = build(cache_bytes=(2 * capacity(length + 2) + CHUNK) * 256, threaded=False)

    def reused(first: int, seed: int = 1) -> bool:
        ids = [first + i % 7 for i in range(length)]
        sampling = Sampling(seed=seed)
        made = engine.generate(asked(None, token_ids=ids, max_new_tokens=2, strategy=sampling))
        return made.events[-1].reused == CHUNK

    assert [reused(10), reused(20)] == [False, False]
    assert reused(10, seed=2)  # used again, and another text kept beside it
    assert not reused(30)  # takes the place of the least recently used
    assert reused(10)
    assert not reused(20)


def test_looks_at_steps_that_were_given_up_leave_no_caches_behind(build: Build) -> None:
    engine = build(trace_bytes=0, threaded=False)
    run = engine.stream(asked(max_new_tokens=200))
    drained(run)
    held = len(engine.loop.kept), engine.loop.kept.nbytes
    for index in range(199, -1, -1):
        run.reweigh(index)
    assert (len(engine.loop.kept), engine.loop.kept.nbytes) == held
    engine.loop.kept.shrink(0)
    for index in (7, 100, 3, 199, 150):  # also where only looks fill it
        run.reweigh(index)
        assert len(engine.loop.kept) == 1


def test_what_several_tokens_a_pass_left_serves_everybody_to_the_last_bit(build: Build) -> None:
    """They attend one by one, however many come: nobody can tell."""
    engine = build(threaded=False)
    prompt = len(engine.tokenize(asked()))
    alone = build(threaded=False).generate(asked(strategy=Greedy(), max_new_tokens=30))
    guessed = engine.stream(asked(strategy=Guessing(alone.token_ids, prompt), max_new_tokens=30))
    assert guessed.result().token_ids == alone.token_ids
    fresh = engine.stream(asked(strategy=Greedy(), max_new_tokens=2))
    drained(fresh)
    fresh.steps, fresh.moments = list(guessed.steps), list(guessed.moments)
    branch = fresh.branch(20, more=10)
    assert drained(branch)[-1].reused == prompt + 19
    for a, b in zip(branch.steps, alone.events[1:-1], strict=True):
        same_step(a, b)


@pytest.mark.parametrize("use", ["another run", "a branch"])
def test_what_a_run_ran_in_its_own_way_serves_itself_and_its_branches_alone(
    build: Build, use: str
) -> None:
    """Where rows run as the model runs them, several tokens at once differ in their last bits."""
    engine = build("bloom", threaded=False)
    prompt = len(engine.tokenize(asked()))
    oracle = build("bloom", threaded=False).generate(asked(strategy=Greedy(), max_new_tokens=30))
    strategy = Guessing(oracle.token_ids, prompt)
    guessed = engine.stream(asked(strategy=strategy, max_new_tokens=30))
    assert guessed.result().token_ids == oracle.token_ids
    if use == "a branch":
        assert drained(guessed.branch(20, strategy=Greedy(), more=3))[-1].reused == prompt + 19
        return
    fresh = engine.stream(asked(strategy=Greedy(), max_new_tokens=2))
    drained(fresh)
    fresh.steps, fresh.moments = list(guessed.steps), list(guessed.moments)
    branch = fresh.branch(20, more=3)
    assert drained(branch)[-1].reused <= prompt + 1


WORDS = [5, 90, 130]


@dataclass(frozen=True)
class Act:
    """One thing people do: a fresh run on a prompt, or a branch of an earlier run."""

    prompt: tuple[int, ...]
    strategy: Strategy
    length: int
    of: int | None = None  # which earlier run
    at: int = 0
    token_id: int | None = None
    turns: int = 0  # until the next one comes
    leaves: bool = False  # then


acts = st.lists(
    st.builds(
        Act,
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(tuple),
        st.sampled_from([Greedy(), Sampling(seed=1), Sampling(seed=2, temperature=2.0)]),
        st.integers(1, 8),
        st.none() | st.integers(0, 5),
        st.integers(0, 8),
        st.none() | st.sampled_from(WORDS),
        st.integers(0, 9),
        st.integers(0, 4).map(lambda n: n == 0),
    ),
    min_size=2,
    max_size=8,
)


@cache
def fresh(architecture: str) -> Engine:
    """Nobody else is there; `alone` sees to it that nobody ever was."""
    return tiny_models.engine(architecture, threaded=False)


def alone(architecture: str, request: Request) -> list[Step]:
    engine = fresh(architecture)
    engine.loop.kept.shrink(0)
    return [event for event in engine.generate(request).events if isinstance(event, Step)]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=EXACT)
@given(acts, st.sampled_from(["llama", "gpt2", "mistral", "bloom"]), st.sampled_from([2, 5, 100]))
def test_shared_caches_never_change_a_result(
    short_chunks: None, acts: list[Act], architecture: str, room: int
) -> None:
    """Whatever runs, branches and cancellations came before, or go on at the same time.

    A run has exactly the numbers that it has on an engine of its own; a branch those of a run
    without any cache, up to rounding.
    """
    budget = capacity(30) * fresh(architecture).backbone.layout.bytes_per_token * room
    engine = tiny_models.engine(architecture, threaded=False, cache_bytes=budget)
    runs: list[tuple[Run, int, list[int], int | None]] = []
    for act in acts:
        if act.of is not None and runs:
            parent = runs[act.of % len(runs)][0]
            at = min(act.at, len(parent.steps))
            run = parent.branch(at, token_id=act.token_id, strategy=act.strategy, more=act.length)
            taken = [*parent.prompt_ids, *(step.token_id for step in parent.steps[:at])]
            runs.append((run, at, taken, act.token_id))
        else:
            run = engine.stream(
                Request(token_ids=act.prompt, strategy=act.strategy, max_new_tokens=act.length)
            )
            runs.append((run, 0, [], None))
        for _ in range(act.turns):
            engine.step()
            assert held(engine) <= budget
        if act.leaves:
            run.cancel()
    while engine.step():
        assert held(engine) <= budget
    for run, at, taken, forced in runs:
        if not taken:
            for a, b in zip(run.steps, alone(architecture, run.request), strict=False):
                same_step(a, b)
            continue
        made = [step.token_id for step in run.steps[at:]]
        if made and forced is not None:
            assert made[0] == forced
            taken, made = [*taken, forced], made[1:]
        if made:
            strategy, more = run.request.strategy, len(made)
            request = Request(
                token_ids=taken, strategy=strategy, max_new_tokens=more, use_cache=False
            )
            for a, b in zip(run.steps[-more:], alone(architecture, request), strict=True):
                same_numbers(replace(a, index=b.index, text=b.text), b)
