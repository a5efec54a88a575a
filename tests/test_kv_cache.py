"""The KV cache: its budget, what is kept for later, and that nobody's result knows of it."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest
import tiny_models
from deciders import Guessing, TwoRows
from engine_cases import EXACT, Build, asked, drained, held, same_numbers, same_step, shared
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB

from model import Greedy, Request, Run, Sampling, Step, decoding, kv_cache
from model.backbone import Feed
from model.kept import Kept
from model.kv_cache import CHUNK, Slot, capacity
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


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most bytes of all caches that existed at once, whoever held them."""
    slots: weakref.WeakSet[Slot] = weakref.WeakSet()
    most = [0]
    made, grow = Slot.__init__, kv_cache.GrowingLayer._grow

    def seen(slot: Slot, *args: Any) -> None:
        made(slot, *args)
        slots.add(slot)

    def grown(layer: Any, end: int) -> None:
        grow(layer, end)
        most[0] = max(most[0], sum(slot.nbytes for slot in list(slots)))

    monkeypatch.setattr(Slot, "__init__", seen)
    monkeypatch.setattr(kv_cache.GrowingLayer, "_grow", grown)
    return most


@pytest.mark.parametrize("shared_prompts", [True, False])
def test_the_cache_budget_holds_whoever_needs_it(
    build: Build, peak: list[int], shared_prompts: bool
) -> None:
    """Several rows, copies of kept caches, questions: all together, at every moment."""
    budget = capacity(150) * 256 * 4
    engine = build(cache_bytes=budget, threaded=False, trace_bytes=0)
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
    for run in runs:
        assert drained(run)[-1].reason == "length"
    assert budget // 2 < peak[0] <= budget


def test_a_question_waits_for_no_run_and_takes_its_own_cache_alone(
    build: Build, peak: list[int]
) -> None:
    budget = capacity(150) * 256
    engine = build(cache_bytes=budget, threaded=False, trace_bytes=0)
    first = engine.stream(asked(max_new_tokens=100))
    drained(first)
    paused = engine.stream(asked("x", max_new_tokens=149))
    engine.step()
    paused.pause()
    assert len(engine.score("the cat is on the mat " * 9, num_candidates=1)) > 80
    first.reweigh(99)
    assert engine.status().kept_bytes == 0  # all is promised to the run that is paused
    assert budget < peak[0] <= 2 * budget
    paused.cancel()


@pytest.mark.parametrize("room", [0, 1, 63, 64, 65, 80, 500, 575, 576, 577, 584, 585, 10_000])
def test_the_longest_text_of_a_buffer_is_the_longest(room: int) -> None:
    length = kv_cache.longest(room)
    assert capacity(length) <= room or length == 0
    assert capacity(length + 1) > room


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
    engine = build(cache_bytes=capacity(length + 2) * 256 * 3, threaded=False)  # room for three

    def reused(first: int, seed: int = 1) -> bool:
        ids = [first + i % 7 for i in range(length)]
        sampling = Sampling(seed=seed)
        made = engine.generate(asked(None, token_ids=ids, max_new_tokens=2, strategy=sampling))
        return made.events[-1].reused == CHUNK

    assert [reused(10), reused(20)] == [False, False]
    assert reused(10, seed=2)  # used again, and another text kept beside it
    assert not reused(30)  # takes the place of the least recently used
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


@dataclass(eq=False)
class Held:
    """A slot without a model."""

    prompt: int
    length: int
    exact: int
    nbytes: int = 8

    def fork(self, length: int) -> Held:
        return Held(self.prompt, length, min(self.exact, length), self.nbytes)


told = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=12),  # its tokens
    st.integers(1, 12),  # how many of them are its prompt
    st.integers(0, 12),  # how many were run in the usual way
    st.sampled_from("ab"),  # whose it was
)


def serves(held: tuple[Any, ...], wanted: list[int], prompt: int, family: str) -> int:
    """What the kept caches promise, in the plainest words."""
    ids, its_prompt, exact, owner = held
    alike = 0
    while alike < min(len(ids), len(wanted) - 1) and ids[alike] == wanted[alike]:
        alike += 1
    alike = alike if owner in family else min(alike, exact)
    if its_prompt == prompt and alike >= prompt:
        return alike
    return min(alike, its_prompt, prompt) // 3 * 3


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=EXACT)
@given(st.lists(told, max_size=8), st.lists(told, min_size=1, max_size=4))
def test_the_kept_cache_that_serves_for_most_is_taken(
    short_chunks: None, helds: list[Any], asks: list[Any]
) -> None:
    """However they are found, and although those that add nothing are not kept."""
    kept, there = Kept(), []
    for ids, prompt, exact, owner in helds:
        prompt, exact = min(prompt, len(ids)), min(exact, len(ids))
        kept.put(ids, Held(prompt, len(ids), exact), owner)
        there.append((ids, prompt, exact, owner))
        assert kept.nbytes == 8 * len(kept)
    for wanted, prompt, _, family in asks:
        prompt = min(prompt, len(wanted))
        best = max((serves(held, wanted, prompt, family) for held in there), default=0)
        slot = kept.take(wanted, prompt, (family,))
        assert slot.length == best
        assert slot.prompt == prompt
        assert kept.nbytes == 8 * len(kept)
        if best:  # back, as after its run
            kept.put(wanted, slot, family)
            there.append((wanted[:best], prompt, slot.exact, family))
    kept.shrink(16)
    assert kept.nbytes == 8 * len(kept) <= 16
    kept.shrink(0)
    assert kept.nbytes == len(kept) == len(kept._openings) == 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_cache_that_is_the_beginning_of_another_is_not_kept_beside_it(order: int) -> None:
    kept = Kept()
    for ids in [[1, 2, 3], [1, 2, 3, 4, 5]][::order]:
        kept.put(ids, Held(2, len(ids), len(ids)))
    assert len(kept) == 1
    assert kept.take([1, 2, 3, 4, 5, 6], 2).length == 5
    for ids, prompt, exact in [([1, 2, 3], 2, 3), ([1, 2, 3, 4], 3, 4), ([1, 2, 3, 4], 2, 2)]:
        kept.put(ids, Held(prompt, len(ids), exact))
    assert len(kept) == 3  # after another prompt, and one that was run in another way


def test_among_many_caches_the_right_one_is_found_at_once() -> None:
    """A Python loop over all tokens of all of them would take more than 100 ms."""
    kept = Kept()
    for n in range(1000):
        kept.put([n] * 2000, Held(1000, 2000, 2000))
    began = time.perf_counter()
    assert kept.take([500] * 3000, 1000).length == 2000
    assert time.perf_counter() - began < 0.01


class Passes(Slot):
    """A slot of any length."""

    length = 0

    def __init__(self, prompt: int, length: int) -> None:
        super().__init__(prompt)
        self.length = self.exact = length


@pytest.mark.parametrize(
    ("held", "unfed", "wanted", "passes"),
    [
        (0, 10, 1, [(3, 0), (3, 0), (3, 0), (1, 1)]),
        (0, 12, 1, [(3, 0), (3, 0), (3, 0), (1, 0), (2, 1)]),  # the prompt, of 10, stays apart
        (9, 1, 1, [(1, 1)]),
        (10, 1, 1, [(1, 1)]),
        (10, 7, 1, [(3, 0), (3, 0), (1, 1)]),
        (10, 5, 5, [(5, 5)]),  # what is wanted together comes together
        (10, 7, 5, [(2, 0), (5, 5)]),
        (8, 4, 3, [(1, 0), (3, 3)]),
    ],
)
def test_passes_over_a_prompt_and_what_is_behind_it(
    short_chunks: None, held: int, unfed: int, wanted: int, passes: list[tuple[int, int]]
) -> None:
    slot, made, tokens = Passes(10, held), [], list(range(unfed))
    while tokens:
        feed = decoding.next_feed(tokens, slot, wanted)
        made.append((len(feed.token_ids), feed.logits))
        assert list(feed.token_ids) == tokens[: made[-1][0]]
        tokens = tokens[made[-1][0] :]
        slot.length += made[-1][0]
    assert made == passes
    assert decoding.next_feed(range(5), None, 2) == Feed(range(5), None, 2)


@pytest.mark.parametrize("use", ["another run", "a branch"])
def test_what_a_run_ran_in_its_own_way_serves_itself_and_its_branches_alone(
    build: Build, use: str
) -> None:
    """Several tokens a pass differ in their last bits from one at a time."""
    engine = build(threaded=False)
    prompt = len(engine.tokenize(asked()))
    oracle = shared().generate(asked(strategy=Greedy(), max_new_tokens=30)).token_ids
    guessed = engine.stream(asked(strategy=Guessing(oracle, prompt), max_new_tokens=30))
    assert guessed.result().token_ids == oracle
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
    stop_after: int | None = None  # cancelled after so many turns


acts = st.lists(
    st.builds(
        Act,
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(tuple),
        st.sampled_from([Greedy(), Sampling(seed=1), Sampling(seed=2, temperature=2.0)]),
        st.integers(1, 8),
        st.none() | st.integers(0, 5),
        st.integers(0, 8),
        st.none() | st.sampled_from(WORDS),
        st.none() | st.integers(0, 4),
    ),
    min_size=2,
    max_size=8,
)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts run three tokens at a time, so that short ones have several chunks."""
    monkeypatch.setattr(kv_cache, "CHUNK", 3)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=EXACT)
@given(acts, st.sampled_from(["llama", "gpt2", "mistral"]), st.sampled_from([2, 5, 100]))
def test_shared_caches_never_change_a_result(
    short_chunks: None, acts: list[Act], architecture: str, room: int
) -> None:
    """Whatever runs, branches and cancellations came before.

    A run has exactly the numbers that it has on an engine of its own; a branch those of a run
    without any cache, up to rounding.
    """
    budget = capacity(30) * 512 * room
    engine = tiny_models.engine(architecture, threaded=False, cache_bytes=budget)
    fresh = tiny_models.engine(architecture, threaded=False)
    runs: list[Run] = []
    for act in acts:
        alone = None
        if act.of is not None and runs:
            parent = runs[act.of % len(runs)]
            at = min(act.at, len(parent.steps))
            run = parent.branch(at, token_id=act.token_id, strategy=act.strategy, more=act.length)
            taken = [*parent.prompt_ids, *(step.token_id for step in parent.steps[:at])]
            forced = act.token_id
        else:
            run = engine.stream(
                Request(token_ids=act.prompt, strategy=act.strategy, max_new_tokens=act.length)
            )
            at, taken, forced = 0, list(act.prompt), None
            alone = tiny_models.engine(architecture, threaded=False).generate(run.request)
        runs.append(run)
        if act.stop_after is None:
            drained(run)
        else:
            for _ in range(act.stop_after):
                engine.step()
            run.cancel()
            engine.step()
        assert held(engine) <= budget
        if alone is not None:
            for a, b in zip(run.steps, alone.events[1:], strict=False):
                same_step(a, b)
        made = [step.token_id for step in run.steps[at:]]
        if not made:
            continue
        if forced is not None:
            assert made[0] == forced
            taken, made = [*taken, forced], made[1:]
        if made:
            wanted = fresh.generate(
                Request(
                    token_ids=taken,
                    strategy=run.request.strategy,
                    max_new_tokens=len(made),
                    use_cache=False,
                )
            )
            assert made == list(wanted.token_ids)
            steps = [event for event in wanted.events if isinstance(event, Step)]
            for a, b in zip(run.steps[-len(made) :], steps, strict=True):
                same_numbers(replace(a, index=b.index, text=b.text), b)
