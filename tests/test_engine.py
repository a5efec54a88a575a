"""The engine: what a run reports, what can be asked of it, and how runs share one model."""

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
import tracemalloc
import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB

from model import (
    Busy,
    Engine,
    FieldError,
    Finished,
    Gone,
    Greedy,
    ModelUnavailable,
    Request,
    Run,
    Sampling,
    Started,
    Step,
    Waiting,
    decoding,
    kv_cache,
)
from model import run as run_module
from model.backbone import Feed
from model.draw import uniform
from model.kv_cache import CHUNK, Kept, Slot, roomy
from model.strategies import Continuation, Decision, Strategy

PROMPT = "The capital of France is"
LONG = 24
EXACT = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
Build = Callable[..., Engine]


def asked(prompt: str | None = PROMPT, **options: Any) -> Request:
    options = {"strategy": Sampling(seed=7), "max_new_tokens": 12, "num_candidates": 5} | options
    return Request(prompt=prompt, **options)


def drained(run: Run) -> list[Any]:
    return list(run)


def untimed(step: Step) -> Step:
    return replace(step, duration_s=0.0)


def same_step(a: Step, b: Step) -> None:
    assert untimed(a) == untimed(b)


def same_numbers(a: Step, b: Step) -> None:
    """Equal up to the rounding of another order of summation."""
    close = {"rel": 1e-4, "abs": 1e-6}
    assert (a.index, a.token_id, a.text, a.draw) == (b.index, b.token_id, b.text, b.draw)
    for name in ("raw_prob", "final_prob", "entropy", "final_entropy", "kept_prob"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), **close)


def turns(engine: Engine, kind: str = "decode") -> int:
    return sum(turn.kind == kind for turn in engine.timeline())


@cache
def shared() -> Engine:
    """One engine without a thread, for tests that need nothing of their own."""
    return tiny_models.engine(threaded=False)


# events


def test_events_come_in_order_and_exactly_one_finished(engine: Engine) -> None:
    events = drained(engine.stream(asked()))
    assert isinstance(events[0], Started)
    steps = [event for event in events if isinstance(event, Step)]
    kinds = [type(event) for event in events if not isinstance(event, Waiting)]
    assert kinds == [Started, *[Step] * 12, Finished]
    assert [step.index for step in steps] == list(range(12))
    finished = events[-1]
    assert finished.reason == "length"
    assert finished.message == ""
    written = "".join(step.text for step in steps)
    assert finished.text in (written, written + "\ufffd")  # half a character may be left at the end
    assert finished.prefill_s > 0
    assert finished.decode_s > 0
    assert finished.tokens_per_s == pytest.approx(11 / finished.decode_s)
    # 2 x 2 layers x 2 key-value heads x 8 x 4 bytes; the newest token has not been run
    assert finished.cache_bytes == 256 * (len(events[0].prompt_ids) + 11)
    assert sum(step.duration_s for step in steps) <= finished.prefill_s + finished.decode_s + 1e-3


def test_started_tells_what_was_sent_and_what_decodes(engine: Engine) -> None:
    run = engine.stream(asked("Türkiye 🎈", num_candidates=1))
    started = drained(run)[0]
    ids = tiny_models.tokenizer()("Türkiye 🎈")["input_ids"]
    assert list(started.prompt_ids) == ids
    assert "".join(started.prompt_texts) == "Türkiye 🎈"
    assert started.prompt_labels == tuple(engine.token_text.label(i) for i in ids)
    assert (started.device, started.precision) == ("cpu", "fp32")
    assert (started.vocab_size, started.max_new_tokens) == (VOCAB, 12)
    assert (started.seed, started.inherited, started.handle) == (7, 0, run.handle)
    assert started.parent is run.parent is None


def test_a_step_reports_candidates_likeliest_first_with_the_chosen_one(engine: Engine) -> None:
    request = asked(strategy=Sampling(temperature=2.0, top_k=40, seed=1), max_new_tokens=30)
    for step in engine.generate(request).events[1:-1]:
        ids = [candidate.token_id for candidate in step.candidates]
        assert step.token_id in ids
        assert 5 <= len(ids) <= 7
        raw = [candidate.raw_prob for candidate in step.candidates]
        assert raw == sorted(raw, reverse=True)
        chosen = step.candidates[ids.index(step.token_id)]
        assert (chosen.raw_prob, chosen.final_prob) == (step.raw_prob, step.final_prob)
        assert chosen.cut_by is None
        assert step.kept == 40
        assert step.label == chosen.label == engine.token_text.label(step.token_id)
        low, high = step.span
        assert low <= step.draw < high


@pytest.mark.parametrize("others", [0, 2])
def test_a_step_takes_what_its_pass_its_choice_and_its_report_take(
    build: Build, others: int
) -> None:
    """Also the report of the whole vocabulary, the prompt, and only its own turns."""
    engine = build(threaded=False)
    request = asked(None, token_ids=[5] * (2 * CHUNK), num_candidates=VOCAB, max_new_tokens=40)
    run = engine.stream(request)
    company = [engine.stream(asked(max_new_tokens=40)) for _ in range(others)]
    drained(run)
    mine = [turn.duration_s for turn in engine.timeline() if turn.handles == (run.handle,)]
    work = sum(step.duration_s for step in run.steps)
    assert 0.9 * sum(mine) <= work <= sum(mine)
    assert run.steps[0].duration_s >= 0.9 * sum(mine[:2])
    assert all(other.steps for other in company)


@pytest.mark.parametrize("count", [1, 2, VOCAB, 10**7])
def test_up_to_the_whole_vocabulary(count: int) -> None:
    request = asked(num_candidates=count, max_new_tokens=2, strategy=Greedy())
    steps = shared().generate(request).events[1:-1]
    assert all(len(step.candidates) == min(count, VOCAB) for step in steps)


def test_everything_pickles(engine: Engine) -> None:
    result = engine.generate(asked(num_candidates=50))
    assert pickle.loads(pickle.dumps(result)) == result
    for event in (*result.events, Waiting(3)):
        assert pickle.loads(pickle.dumps(event)) == event
    for error in (
        FieldError("top_p", 2, "a number from 0 to 1", "number", low=0, high=1),
        Busy(3.5),
        Gone("step", 4),
        ModelUnavailable("x", "there is none."),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    for strategy in (Greedy(), Sampling(top_k=5, seed=1)):
        assert pickle.loads(pickle.dumps(strategy)) == strategy


def test_several_readers_see_the_same_events(engine: Engine) -> None:
    run = engine.stream(asked(max_new_tokens=60))
    seen: list[list[Any]] = [[] for _ in range(4)]
    readers = [threading.Thread(target=lambda into=into: into.extend(run)) for into in seen]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
    assert len(seen[0]) == 62
    assert all(events == seen[0] for events in seen)
    assert drained(run) == seen[0]  # and whoever comes late, everything from the first


# text and ends


@cache
def free_run() -> tuple[tuple[int, ...], list[str]]:
    """What `asked()` writes when nothing stops it: the tokens, and the text of each."""
    steps = shared().generate(asked(max_new_tokens=LONG)).events[1:-1]
    return tuple(step.token_id for step in steps), [step.text for step in steps]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_a_stop_string_ends_the_run_and_is_cut(data: st.DataObject) -> None:
    """Wherever it begins, over however many tokens, and whichever of several comes first."""
    ids, pieces = free_run()
    written = "".join(pieces)
    stops = []
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(written) // 2))
        stops.append(written[start : start + data.draw(st.integers(1, 9))])
    result = shared().generate(asked(max_new_tokens=LONG, stop=stops))
    # The first moment at which one of them is there; then the one that begins first counts.
    needed = next(n for n in range(1, len(ids) + 1) if any(s in "".join(pieces[:n]) for s in stops))
    so_far = "".join(pieces[:needed])
    assert result.token_ids == ids[:needed]
    assert result.text == so_far[: min(so_far.find(s) for s in stops if s in so_far)]
    assert result.finish_reason == "stop"


def test_a_stop_string_at_the_very_start_leaves_nothing() -> None:
    _, pieces = free_run()
    result = shared().generate(asked(stop=pieces[0]))
    assert (result.text, result.finish_reason, len(result.token_ids)) == ("", "stop", 1)


def test_a_stop_string_that_never_comes_changes_nothing() -> None:
    ids, pieces = free_run()
    result = shared().generate(asked(max_new_tokens=LONG, stop=["never this 🎈", PROMPT]))
    assert result.token_ids == ids
    assert result.text.startswith("".join(pieces))


def test_a_continued_run_is_cut_at_its_own_stop_string() -> None:
    """The one that ended the run before stays in the text, and so does what follows it."""
    _, pieces = free_run()
    written = "".join(pieces)
    stop = next(c for c in written if written.count(c) >= 2)
    first = shared().stream(asked(max_new_tokens=LONG, stop=stop))
    assert drained(first)[-1].text == written[: written.find(stop)]
    second = first.branch(more=40)
    finished = drained(second)[-1]
    assert finished.reason == "stop"
    texts = "".join(step.text for step in second.steps)
    assert finished.text == texts[: texts.find(stop, len("".join(s.text for s in first.steps)))]
    assert stop in finished.text


def test_an_end_token_ends_the_run(build: Build) -> None:
    ids, _ = free_run()
    end = ids[5]
    at = ids.index(end)
    result = build(ends=(VOCAB - 1, end)).generate(asked())
    assert result.token_ids == ids[: at + 1]
    assert result.finish_reason == "eos"


def test_ignore_eos_goes_on(build: Build) -> None:
    ids, _ = free_run()
    result = build(ends=(ids[0],)).generate(asked(max_new_tokens=LONG, ignore_eos=True))
    assert result.token_ids == ids
    assert result.finish_reason == "length"


def test_special_tokens_add_no_text() -> None:
    end = tiny_models.tokenizer().convert_tokens_to_ids(tiny_models.END)
    run = shared().stream(asked(strategy=Greedy(), max_new_tokens=3))
    drained(run)
    forced = run.fork(1, end)
    assert drained(forced)[-1].text == "".join(step.text for step in forced.steps)
    assert forced.steps[1].text in ("", "\ufffd")
    assert tiny_models.END not in forced.finished.text


@pytest.mark.parametrize("left", [1, 2, 7])
def test_the_context_bounds_the_run(build: Build, left: int) -> None:
    engine = build("gpt2", context=64)  # its learnt positions end there
    run = engine.stream(asked(None, token_ids=[5] * (64 - left), max_new_tokens=500))
    events = drained(run)
    assert events[0].max_new_tokens == left
    assert (events[-1].reason, len(run.steps)) == ("length", left)


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_without_room_says_how_much_there_is(build: Build, length: int) -> None:
    engine = build("gpt2", context=64)
    with pytest.raises(FieldError, match=f"at most 63 tokens, and it has {length}") as caught:
        engine.stream(asked(None, token_ids=[5] * length))
    assert caught.value.field == "prompt"
    assert caught.value.details == {"tokens": length, "room": 63}
    assert engine.generate(asked()).finish_reason == "length"


def test_an_empty_prompt_starts_from_the_start_token() -> None:
    start = tiny_models.tokenizer().bos_token_id
    assert shared().tokenize(asked("")) == (start,)
    assert shared().tokenize(asked(None, token_ids=[])) == (start,)
    empty = shared().generate(asked(""))
    assert empty.token_ids == shared().generate(asked(None, token_ids=[start])).token_ids
    assert len(empty.token_ids) == 12


def test_chat_sends_what_the_template_makes() -> None:
    tokenizer = tiny_models.tokenizer()
    written = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    ids = shared().tokenize(asked("Hi", chat=True, system="Be brief."))
    assert list(ids) == tokenizer(written)["input_ids"]
    alone = shared().tokenize(asked("Hi", chat=True))
    assert tokenizer.decode(alone) == "<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    events = shared().generate(asked("Hi", chat=True)).events
    assert events[0].prompt_ids == alone
    assert "⟨|start|⟩" in events[0].prompt_labels


def test_chat_without_a_template_says_so(build: Build) -> None:
    engine = build(chat=False)
    with pytest.raises(FieldError, match="no chat template") as caught:
        engine.stream(asked(chat=True))
    assert (caught.value.field, caught.value.code) == ("chat", "no_chat")


def test_a_template_that_refuses_says_why() -> None:
    tokenizer = tiny_models.tokenizer().__class__(
        tokenizer_object=tiny_models.tokenizer().backend_tokenizer, bos_token=tiny_models.START
    )
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}"
        "{% endif %}{{ messages[0]['content'] }}"
    )
    engine = Engine(tiny_models.model(), tokenizer, threaded=False)
    assert engine.generate(asked(chat=True)).finish_reason == "length"
    with pytest.raises(FieldError, match="No system role") as caught:
        engine.generate(asked(chat=True, system="Be brief."))
    assert (caught.value.field, caught.value.code) == ("system", "chat_refused")


# seeds


def test_a_seed_makes_a_run_reproducible(build: Build) -> None:
    first = build().generate(asked(strategy=Sampling(seed=2**53 - 1)))
    again = build().generate(asked(strategy=Sampling(seed=2**53 - 1)))
    other = build().generate(asked(strategy=Sampling(seed=2**53 - 2)))
    assert first.token_ids == again.token_ids != other.token_ids
    assert first.events[0].seed == 2**53 - 1
    before = len(first.events[0].prompt_ids)
    for step in first.events[1:-1]:  # one number for every place, and another at every place
        assert step.draw == uniform(2**53 - 1, before + step.index)
    assert [untimed(a) for a in first.events[1:-1]] == [untimed(b) for b in again.events[1:-1]]


def test_without_a_seed_the_reported_one_reproduces_the_run(engine: Engine) -> None:
    runs = [engine.generate(asked(strategy=Sampling())) for _ in range(3)]
    seeds = [run.events[0].seed for run in runs]
    assert len(set(seeds)) == 3
    for run, seed in zip(runs, seeds, strict=True):
        assert engine.generate(asked(strategy=Sampling(seed=seed))).token_ids == run.token_ids


@pytest.mark.parametrize("strategy", [Greedy(), Sampling(temperature=0, seed=4)])
def test_where_nothing_is_drawn_there_is_no_seed(strategy: Strategy) -> None:
    events = shared().generate(asked(strategy=strategy)).events
    assert events[0].seed is None
    assert all(step.draw is None and step.span is None for step in events[1:-1])


def test_temperature_0_is_greedy() -> None:
    cold = shared().generate(asked(strategy=Sampling(temperature=0)))
    assert cold.token_ids == shared().generate(asked(strategy=Greedy())).token_ids


def test_a_run_does_not_depend_on_its_company(build: Build) -> None:
    prompts = [PROMPT, "once upon a time", "x", PROMPT + " Paris", "Deniz kıyısında"] * 3
    requests = [
        asked(prompt, strategy=Sampling(seed=i % 4, temperature=1.5), max_new_tokens=10 + i)
        for i, prompt in enumerate(prompts)
    ]
    together = build().generate_many(requests)
    for request, made in zip(requests, together, strict=True):
        alone = build(threaded=False).generate(request)
        assert made.token_ids == alone.token_ids
        for a, b in zip(made.events, alone.events, strict=False):
            if isinstance(a, Step) and isinstance(b, Step):
                same_step(a, b)


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


def test_score_weighs_a_given_text() -> None:
    text = "The cat is on the mat"
    steps = shared().score(text, num_candidates=3)
    assert "".join(step.text for step in steps) == text
    assert all(step.forced and step.draw is None for step in steps)
    assert all(step.token_id in [c.token_id for c in step.candidates] for step in steps)
    assert shared().score("") == []
    written = tiny_models.START + text  # a start token that is there already is not put twice
    assert [s.token_id for s in shared().score(written)] == [s.token_id for s in steps]


def test_a_run_is_found_by_its_handle(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.engine.MOST_RUNS", 3)
    engine = build()
    runs = [engine.stream(asked(max_new_tokens=2)) for _ in range(3)]
    for run in runs:
        drained(run)
    runs.append(engine.stream(asked(max_new_tokens=2)))
    assert [engine.run(run.handle) for run in runs[1:]] == runs[1:]
    for handle in (runs[0].handle, "", "x" * 10**5, None, 5, [runs[3].handle], {}):
        with pytest.raises(Gone):
            engine.run(handle)
    assert len({run.handle for run in runs}) == 4


def test_a_run_that_is_decoding_stays_found(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.engine.MOST_RUNS", 3)
    engine = build(threaded=False)
    slow = engine.stream(asked(max_new_tokens=9))
    slow.pause()
    done = []
    for _ in range(5):
        done.append(engine.stream(asked(max_new_tokens=1)))
        drained(done[-1])
    assert engine.run(slow.handle) is slow
    assert engine.run(done[-1].handle) is done[-1]
    with pytest.raises(Gone):
        engine.run(done[0].handle)
    slow.cancel()
    drained(slow)


def test_runs_used_lately_stay_found(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.engine.MOST_RUNS", 2)
    engine = build(threaded=False)
    runs = []
    for _ in range(3):
        runs.append(engine.stream(asked(max_new_tokens=1)))
        drained(runs[-1])
        assert engine.run(runs[0].handle) is runs[0]
    with pytest.raises(Gone):
        engine.run(runs[1].handle)


def test_what_runs_report_is_held_within_bytes(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured; the bound is estimated."""
    monkeypatch.setattr("model.engine.REPORT_BYTES", 2_000_000)
    engine = build(threaded=False, trace_bytes=0)
    request = asked(num_candidates=VOCAB, max_new_tokens=20)
    run = engine.stream(request)
    drained(run)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):  # about 900 kB each
            last = drained(run := engine.stream(request))[0]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 2 <= len(engine.runs) <= 4
    assert held < 4_000_000
    assert engine.run(last.handle) is run


def test_a_run_larger_than_the_bound_stays_until_the_next(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.engine.REPORT_BYTES", 1)
    engine = build(threaded=False)
    first = engine.stream(asked())
    drained(first)
    assert engine.run(first.handle) is first
    branch = first.branch(5)
    drained(branch)
    assert engine.run(branch.handle) is branch


def test_what_is_only_generated_leaves_no_run(engine: Engine) -> None:
    run = engine.stream(asked())
    handles = [engine.generate(asked()).events[0].handle]
    handles += [r.events[0].handle for r in engine.generate_many([asked()] * 3)]
    for handle in handles:
        with pytest.raises(Gone):
            engine.run(handle)
    assert engine.run(run.handle) is run
    assert len(engine.runs) == 1


def long_text(engine: Engine) -> str:
    """Of some chunks."""
    return "the cat is on the mat " * 80


@pytest.mark.parametrize("ask", ["score", "look"])
def test_runs_decode_on_while_a_question_is_answered(build: Build, ask: str) -> None:
    engine = build(trace_bytes=0)
    ids = engine.tokenize(asked(long_text(engine)))
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
        assert len(engine.score(long_text(engine))) == len(ids)
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


# ending early


def test_cancel_before_the_first_step() -> None:
    run = shared().stream(asked())
    run.cancel()
    started, finished = drained(run)
    assert isinstance(started, Started)
    assert (finished.reason, finished.text) == ("cancelled", "")
    run.cancel()
    assert drained(run) == [started, finished]


def test_cancel_while_waiting(build: Build) -> None:
    engine = build(cache_bytes=roomy(40) * 256, threaded=False)
    first, second = (engine.stream(asked(max_new_tokens=20)) for _ in range(2))
    engine.step()
    assert engine.status().waiting == 1
    second.cancel()
    engine.step()
    assert [type(event) for event in drained(second)] == [Started, Waiting, Finished]
    assert second.finished.reason == "cancelled"
    assert len(drained(first)) == 22


def test_cancel_in_the_middle_of_a_long_prompt(build: Build) -> None:
    engine = build(threaded=False)
    ids = [(7 * i) % VOCAB for i in range(3 * CHUNK)]
    run = engine.stream(asked(None, token_ids=ids))
    engine.step()
    run.cancel()
    assert [type(event) for event in drained(run)] == [Started, Finished]
    assert turns(engine, "prefill") == 1
    # What was computed is not lost.
    again = drained(engine.stream(asked(None, token_ids=ids)))
    assert again[-1].reused == CHUNK
    wanted = shared().generate(asked(None, token_ids=ids)).token_ids
    assert tuple(event.token_id for event in again[1:-1]) == wanted


def test_cancel_ends_within_one_step(engine: Engine) -> None:
    run = engine.stream(asked(max_new_tokens=900))
    seen = 0
    while len(run.steps) < 3:
        seen += len(run.wait(seen, timeout=5))
    run.cancel()
    at = len(run.steps)
    finished = drained(run)[-1]
    assert finished.reason == "cancelled"
    assert len(run.steps) <= at + 1
    assert finished.text.startswith("".join(step.text for step in run.steps))
    assert engine.status().running == 0


def test_closing_the_iterator_cancels(engine: Engine) -> None:
    run = engine.stream(asked(max_new_tokens=900))
    for event in run:
        if isinstance(event, Step):
            break
    gc.collect()
    assert run.wait(10**9, timeout=5) == []
    assert run.finished.reason == "cancelled"
    assert len(run.steps) < 900


# pause and pace


def test_pause_and_resume(build: Build) -> None:
    engine = build(threaded=False)
    run, other = (engine.stream(asked(max_new_tokens=8)) for _ in range(2))
    for _ in range(4):
        engine.step()
    run.pause()
    drained(other)
    assert len(run.steps) == 2
    assert not engine.step()
    assert run.wait(10**9, timeout=0.01) == []
    run.resume()
    assert len(drained(run)) == 10
    assert run.finished.decode_s < 1


def test_a_paused_run_is_stepped_on(build: Build) -> None:
    """Also through a long prompt, at once however slow the pace, and as often as was asked."""
    engine = build(threaded=False)
    ids = [(7 * i) % VOCAB for i in range(3 * CHUNK)]
    run = engine.stream(asked(None, token_ids=ids, max_new_tokens=9))
    run.pace(run_module.SLOWEST)

    def steps(after: int, times: int = 1) -> int:
        for _ in range(times):
            run.pause(after)
        while engine.step():
            pass
        return len(run.steps)

    assert steps(0) == 0
    assert steps(1) == 1
    assert steps(2) == 3
    assert steps(1, times=3) == 6  # three clicks before the first was served
    assert steps(0, times=2) == 6
    run.pause(5)
    assert steps(0) == 6  # what was not taken yet is taken back
    run.pace(None)
    run.resume()
    assert steps(1) == 7  # of a run that was not paused: one more
    run.resume()
    assert len(drained(run)) == 11


def test_a_paused_run_is_stepped_on_by_the_loop(engine: Engine) -> None:
    run = engine.stream(asked(max_new_tokens=900))
    run.pause()
    seen = len(run.wait(0))
    before = len(run.steps)
    for count in range(1, 4):
        run.pause(1)
        while len(run.steps) < before + count:
            seen += len(run.wait(seen, timeout=5))
    time.sleep(0.05)
    assert len(run.steps) == before + 3
    run.cancel()


@pytest.mark.parametrize("after", [-1, 0.5, "1", None, True, float("nan"), 10**9])
def test_pauses_that_are_none(after: Any) -> None:
    run = shared().stream(asked(max_new_tokens=1))
    with pytest.raises(FieldError) as caught:
        run.pause(after)
    assert caught.value.field == "after"
    assert len(drained(run)) == 3


def test_a_pace_does_not_hold_back_a_prompt(build: Build) -> None:
    engine = build(threaded=False)
    run = engine.stream(asked(None, token_ids=[5] * (3 * CHUNK), max_new_tokens=9))
    run.pace(run_module.SLOWEST)
    assert [engine.step() for _ in range(4)] == [True, True, True, False]
    assert len(run.steps) == 1
    run.cancel()


def test_a_paused_run_can_be_cancelled(engine: Engine) -> None:
    run = engine.stream(asked(max_new_tokens=900))
    run.pause()
    run.cancel()
    assert drained(run)[-1].reason == "cancelled"


def test_a_run_is_resumed_from_another_thread_where_there_is_no_loop(build: Build) -> None:
    run = build(threaded=False).stream(asked(max_new_tokens=3))
    run.pause()
    threading.Timer(0.1, run.resume).start()
    assert len(drained(run)) == 5


@pytest.mark.parametrize("threaded", [True, False])
def test_pace_holds_tokens_apart(build: Build, threaded: bool) -> None:
    run = build(threaded=threaded).stream(asked(max_new_tokens=400))
    run.pause()
    run.pace(40)
    run.resume()
    times = []
    for event in run:
        times += [time.perf_counter()] if isinstance(event, Step) else []
        if len(times) == 7:
            break
    apart = [b - a for a, b in itertools.pairwise(times[-5:])]
    assert sum(apart) / len(apart) == pytest.approx(1 / 40, rel=0.5)
    assert run.finished is None or run.finished.reason == "cancelled"


def test_a_pace_begins_with_its_first_token(build: Build) -> None:
    """Not with two at once."""
    engine = build(threaded=False)
    run = engine.stream(asked(max_new_tokens=5))
    run.pace(0.01)
    assert engine.step()
    assert not engine.step()
    assert len(run.steps) == 1
    run.pace(None)
    assert len(drained(run)) == 7


def test_the_slowest_pace_leaves_the_loop_alive(engine: Engine) -> None:
    slow = engine.stream(asked(max_new_tokens=50))
    slow.pace(run_module.SLOWEST)
    assert len(drained(engine.stream(asked()))) == 14
    time.sleep(0.05)
    assert engine.loop._thread.is_alive()
    slow.cancel()
    assert drained(slow)[-1].reason == "cancelled"


def test_a_pace_that_changes_during_a_step_counts_at_once(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    run = engine.stream(asked(max_new_tokens=50))
    run.pace(run_module.SLOWEST)
    tell = run.tell
    monkeypatch.setattr(run, "tell", lambda event: (tell(event), run.pace(run_module.FASTEST)))
    engine.step()  # the new pace is set while this step, of the slow one, is being taken
    monkeypatch.undo()
    assert run.due(time.perf_counter()) <= 1 / run_module.FASTEST
    run.pace(run_module.SLOWEST)
    run.pause(3)  # steps on that the pace holds back do not count ahead of it
    for _ in range(3):
        engine.step()
    run.pace(run_module.FASTEST)
    assert run.due(time.perf_counter()) <= 1 / run_module.FASTEST or run.paused
    run.resume()
    assert run.due(time.perf_counter()) == 0
    run.cancel()


@pytest.mark.parametrize("pace", [0, -1, float("nan"), float("inf"), 1e-300, "3", True, 10**400])
def test_paces_that_are_none(pace: Any) -> None:
    run = shared().stream(asked(max_new_tokens=1))
    with pytest.raises(FieldError) as caught:
        run.pace(pace)
    assert caught.value.field == "pace"
    assert len(drained(run)) == 3


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
    engine = build(cache_bytes=roomy(40) * 256, threaded=False)  # room for one
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
    engine = build(cache_bytes=roomy(40) * 256, threaded=False)
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
    monkeypatch.setattr(engine, "status", lambda: pytest.fail("reckoned"))
    engine.stream(asked())
    with pytest.raises(pytest.fail.Exception, match="reckoned"):
        engine.stream(asked())


def test_first_come_first_served(build: Build) -> None:
    engine = build(cache_bytes=roomy(60) * 256, threaded=False)
    runs = [engine.stream(asked(max_new_tokens=n)) for n in (30, 40, 1, 1)]
    order = []
    while len(order) < 4:
        engine.step()
        order += [i for i, run in enumerate(runs) if run.finished and i not in order]
    assert order == [0, 1, 2, 3]


def test_runs_take_turns(build: Build) -> None:
    engine = build(threaded=False)
    runs = [engine.stream(asked(max_new_tokens=5)) for _ in range(3)]
    for _ in range(6):
        engine.step()
    assert [len(run.steps) for run in runs] == [2, 2, 2]


@pytest.mark.parametrize("threaded", [True, False])
def test_generate_many_feeds_itself(build: Build, threaded: bool) -> None:
    engine = build(max_waiting=3, threaded=threaded)
    prompts = [f"{i} cats" for i in range(20)]
    results = engine.generate_many(asked(p, max_new_tokens=4) for p in prompts)
    assert [r.token_ids for r in results] == [
        shared().generate(asked(p, max_new_tokens=4)).token_ids for p in prompts
    ]
    assert engine.generate_many([]) == []


@pytest.mark.parametrize("threaded", [True, False])
def test_generate_many_refills_when_any_of_its_runs_is_over(build: Build, threaded: bool) -> None:
    """Not when the oldest is: a long one keeps nobody waiting."""
    engine = build(max_waiting=4, threaded=threaded)
    long, short = asked(max_new_tokens=300), asked(max_new_tokens=2)
    results = engine.generate_many([long] + [short] * 40)
    assert [len(result.token_ids) for result in results] == [300] + [2] * 40
    order = list(dict.fromkeys(turn.handles for turn in engine.timeline()))
    last = max(i for i, turn in enumerate(engine.timeline()) if turn.handles == order[0])
    assert len(order) == 41
    assert engine.timeline()[last + 1 :] == []


def test_generate_many_ends_the_others_when_one_fails(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build(threaded=False)
    requests = [asked(max_new_tokens=900), asked(strategy=Faulty("decider")), asked()]
    with caplog.at_level(logging.CRITICAL), pytest.raises(RuntimeError, match="no decider"):
        engine.generate_many(requests)
    while engine.step():
        pass
    assert sum(turn.written for turn in engine.timeline()) < 10


def test_generate_many_gives_way_to_others_in_the_queue(build: Build) -> None:
    engine = build(max_waiting=1, threaded=False, cache_bytes=roomy(40) * 256)
    others = [engine.stream(asked(max_new_tokens=20))]
    engine.step()
    others.append(engine.stream(asked(max_new_tokens=20)))
    assert len(engine.generate_many([asked(max_new_tokens=3)] * 3)) == 3
    assert all(run.finished for run in others)


def test_generate_many_leaves_nothing_behind_when_one_is_wrong(build: Build) -> None:
    engine = build(threaded=False)
    with pytest.raises(FieldError):
        engine.generate_many([asked(), asked(None, token_ids=[VOCAB])])
    while engine.step():
        pass
    assert engine.status().running == engine.status().waiting == 0
    assert all(turn.kind != "decode" for turn in engine.timeline())


# the cache


def held(engine: Engine) -> int:
    status = engine.status()
    return status.cache_bytes + status.kept_bytes


def test_the_cache_budget_holds_at_every_step(build: Build) -> None:
    budget = roomy(120) * 256 * 2
    engine = build(cache_bytes=budget, threaded=False)
    runs = [engine.stream(asked(f"{i} " * (5 + i), max_new_tokens=10 + 3 * i)) for i in range(12)]
    most = 0
    while engine.step():
        most = max(most, held(engine))
        assert held(engine) <= budget
    assert most > budget // 2
    assert all(run.finished.reason == "length" for run in runs)


@pytest.fixture
def peak(monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine], list[int]]:
    """Watches the bytes of all caches that exist, whoever holds them, whenever one grows."""
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
    budget = roomy(150) * 256 * 4
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
    budget = roomy(150) * 256
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


def test_settings_with_more_rows_have_less_room(build: Build) -> None:
    engine = build(cache_bytes=roomy(100) * 256, threaded=False)
    assert drained(engine.stream(asked("x", max_new_tokens=500)))[0].max_new_tokens == 99
    narrow = engine.stream(asked("x", strategy=TwoRows(), max_new_tokens=500))
    room = kv_cache.longest(roomy(100) // 2)
    assert drained(narrow)[0].max_new_tokens == room - 1
    with pytest.raises(FieldError, match=f"at most {room - 1} tokens"):
        engine.stream(asked(None, token_ids=[5] * room, strategy=TwoRows()))
    long = engine.stream(asked("x", max_new_tokens=room + 5))
    drained(long)
    with pytest.raises(FieldError, match=f"at most {room - 1} tokens"):
        long.branch(strategy=TwoRows())
    assert drained(engine.stream(asked(None, token_ids=[5] * room, max_new_tokens=1)))


@pytest.mark.parametrize("room", [0, 1, 63, 64, 65, 80, 500, 575, 576, 577, 584, 585, 10_000])
def test_the_longest_text_of_a_buffer_is_the_longest(room: int) -> None:
    length = kv_cache.longest(room)
    assert roomy(length) <= room or length == 0
    assert roomy(length + 1) > room


def test_more_rows_than_said_end_the_run_alone(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    class Wide(TwoRows):
        rows = 1

    with caplog.at_level(logging.CRITICAL):
        finished = drained(build().stream(asked(strategy=Wide())))[-1]
    assert finished.reason == "error"
    assert "2 rows" in finished.message


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
    engine = build(cache_bytes=roomy(length + 2) * 256 * 3, threaded=False)  # room for three

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
    budget = roomy(30) * 512 * room
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


def test_status_and_timeline(build: Build) -> None:
    engine = build(cache_bytes=roomy(40) * 256, threaded=False)
    idle = engine.status()
    assert (idle.running, idle.waiting, idle.cache_bytes, idle.tokens_per_s) == (0, 0, 0, 0.0)
    runs = [engine.stream(asked(max_new_tokens=4)) for _ in range(2)]
    engine.step()
    engine.step()
    busy = engine.status()
    assert (busy.running, busy.waiting) == (1, 1)
    assert busy.cache_bytes > 0
    assert busy.trace_bytes == 2 * 4 * VOCAB
    for run in runs:
        drained(run)
    told = engine.timeline()
    assert [turn.kind for turn in told] == ["prefill", "decode", "decode", "decode"] * 2
    assert [turn.handles for turn in told] == [(runs[0].handle,)] * 4 + [(runs[1].handle,)] * 4
    assert told[0].tokens == len(runs[0].prompt_ids)
    assert all(turn.written == 1 for turn in told)
    assert all(a.start_s + a.duration_s <= b.start_s for a, b in itertools.pairwise(told))
    assert engine.status().tokens_per_s > 0


def test_the_rate_is_of_tokens_written(build: Build) -> None:
    """Not of those fed: neither a prompt's nor, without a cache, the whole text's."""
    engine = build(threaded=False)
    began = time.perf_counter()
    request = asked(None, token_ids=[5] * (2 * CHUNK), max_new_tokens=20, use_cache=False)
    engine.generate(request)
    assert engine.status().tokens_per_s > 0
    assert engine.status().tokens_per_s * (time.perf_counter() - began) < 25
    engine.stream(request)
    engine.loop.timeline.clear()
    engine.step()
    assert [turn.written for turn in engine.timeline()] == [1]


def test_close_ends_all_runs(build: Build) -> None:
    engine = build(cache_bytes=roomy(950) * 256)
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


def test_as_a_context_manager_it_closes() -> None:
    with tiny_models.engine() as engine:
        run = engine.stream(asked(max_new_tokens=900))
    assert drained(run)[-1].reason in ("cancelled", "length")


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
    engine = build(max_waiting=200, cache_bytes=roomy(60) * 256 * 6, trace_bytes=4 * VOCAB * 50)
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


# faults


@dataclass(frozen=True)
class Faulty:
    """Greedy until its third step, then a bug."""

    where: str = "decide"
    inner: Greedy = field(default_factory=Greedy)
    draws = False
    seed = None
    rows = 1

    def with_seed(self, seed: int) -> Faulty:
        return self

    def choose(self, logits: torch.Tensor, context: Any) -> Any:
        return self.inner.choose(logits, context)

    def decider(self) -> Any:
        if self.where == "decider":
            raise ZeroDivisionError("no decider")
        return self._Decider(self.inner.decider())

    @dataclass
    class _Decider:
        inner: Any
        steps: int = 0

        def decide(self, rows: Any) -> Any:
            self.steps += 1
            if self.steps == 3:
                raise KeyError("a bug in a strategy")
            return self.inner.decide(rows)


@pytest.mark.parametrize(("where", "steps"), [("decider", 0), ("decide", 2)])
def test_a_fault_in_a_strategy_ends_that_run_alone(
    build: Build, where: str, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build()
    with caplog.at_level(logging.CRITICAL):
        others = [engine.stream(asked(max_new_tokens=30)) for _ in range(2)]
        faulty = engine.stream(asked(strategy=Faulty(where)))
        finished = drained(faulty)[-1]
    assert finished.reason == "error"
    assert "no decider" in finished.message or "a bug in a strategy" in finished.message
    assert len(faulty.steps) == steps
    assert finished.text == "".join(step.text for step in faulty.steps)
    with pytest.raises(RuntimeError, match=r"bug|decider"):
        faulty.result()
    assert all(drained(run)[-1].reason == "length" for run in others)
    assert engine.status().running == 0
    wanted = shared().generate(asked()).token_ids
    assert engine.generate(asked()).token_ids == wanted


def test_a_fault_in_the_model_ends_that_run_alone(
    build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build()
    forward, mine = engine.backbone.forward, 299
    ids = [5] * CHUNK + [6, mine]

    def failing(feeds: Any, *rest: Any) -> Any:
        outputs = forward(feeds, *rest)  # the cache is half written when it fails
        if any(mine in feed.token_ids for feed in feeds):
            raise MemoryError("out of memory")
        return outputs

    monkeypatch.setattr(engine.backbone, "forward", failing)
    with caplog.at_level(logging.CRITICAL):
        good = engine.stream(asked(max_new_tokens=30))
        finished = drained(engine.stream(asked(None, token_ids=ids)))[-1]
    assert (finished.reason, finished.message) == ("error", "MemoryError: out of memory")
    assert drained(good)[-1].reason == "length"
    monkeypatch.undo()
    again = engine.generate(asked(None, token_ids=ids))
    assert again.token_ids == shared().generate(asked(None, token_ids=ids)).token_ids
    assert again.events[-1].reused == 0


def test_a_reader_gets_the_end_whatever_fails_in_it(
    build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build()
    monkeypatch.setattr(engine.loop.kept, "put", lambda *_: 1 / 0)
    with caplog.at_level(logging.CRITICAL):
        assert drained(engine.stream(asked()))[-1].reason == "length"
        monkeypatch.setattr(decoding.Decoding, "final_text", lambda *_: 1 / 0)
        finished = drained(engine.stream(asked()))[-1]
    assert (finished.reason, finished.text) == ("length", "")
    assert engine.status().running == 0


def test_a_turn_that_fails_again_and_again_does_not_spin(
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


def test_logits_that_are_no_numbers_end_the_run_with_a_message(
    build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build()
    forward = engine.backbone.forward

    def broken(feeds: Any, *rest: Any) -> Any:
        return [replace(o, logits=o.logits * float("nan")) for o in forward(feeds, *rest)]

    monkeypatch.setattr(engine.backbone, "forward", broken)
    with caplog.at_level(logging.CRITICAL):
        finished = drained(engine.stream(asked()))[-1]
    assert finished.reason == "error"
    assert "NaN" in finished.message


def test_a_fault_in_a_question_belongs_to_who_asked(engine: Engine) -> None:
    def wrong() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.loop.ask(wrong(), 0)
    assert engine.generate(asked()).finish_reason == "length"


# strategies of one's own: several rows, several tokens


@dataclass(frozen=True)
class Guessing:
    """Greedy through guesses: several tokens are checked in one pass, wrong ones rejected.

    Attributes:
        oracle: the text to guess from; every fifth guess is spoilt.
        bonus: whether a pass whose guesses all held also adds the token after them.
    """

    oracle: tuple[int, ...]
    prompt: int
    guesses: int = 4
    bonus: bool = True
    inner: Greedy = field(default_factory=Greedy)
    draws = False
    seed = None
    rows = 1

    def with_seed(self, seed: int) -> Guessing:
        return self

    def choose(self, logits: torch.Tensor, context: Any) -> Any:
        return self.inner.choose(logits, context)

    def decider(self) -> Any:
        return _Guesser(self)


class _Guesser:
    def __init__(self, strategy: Guessing) -> None:
        self.strategy, self.proposed = strategy, ()

    def decide(self, rows: Any) -> Decision:
        (row,) = rows
        known = len(row.context) - len(self.proposed)
        assert row.logits.shape == (1 + len(self.proposed), VOCAB)
        assert tuple(row.context[known:]) == self.proposed
        choices = []
        for i, logits in enumerate(row.logits):
            if i == len(self.proposed) and i and not self.strategy.bonus:
                break
            choices.append(self.strategy.choose(logits, row.context[: known + i]))
            if i < len(self.proposed) and choices[-1].token_id != self.proposed[i]:
                break
        append = tuple(choice.token_id for choice in choices)
        at = known + len(append) - self.strategy.prompt
        guesses = self.strategy.oracle[at : at + self.strategy.guesses]
        self.proposed = tuple(
            (g + 1) % VOCAB if (at + i) % 5 == 4 else g for i, g in enumerate(guesses)
        )
        return Decision((Continuation(0, append, self.proposed),), tuple(choices))


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
    assert turns(engine) < 30  # of 39
    assert sum(turn.written for turn in engine.timeline()) == 40
    steps = [event for event in made.events if isinstance(event, Step)]
    for a, b in zip(steps, greedy.events[1:-1], strict=True):
        same_numbers(a, b)
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
    after = row.go_on(Continuation(0, append, (4,)), shared)
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
        row.go_on(Continuation(0, (1,)), False)
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


@dataclass(frozen=True)
class TwoRows:
    """Beam search with two beams, as small as it can be; `seen` gets the rows of every step."""

    seen: list[list[tuple[float, list[int]]]] = field(default_factory=list, compare=False)
    inner: Greedy = field(default_factory=Greedy)
    draws = False
    seed = None
    rows = 2

    def with_seed(self, seed: int) -> TwoRows:
        return self

    def choose(self, logits: torch.Tensor, context: Any) -> Any:
        return self.inner.choose(logits, context)

    def decider(self) -> Any:
        return _TwoRows(self)


class _TwoRows:
    def __init__(self, strategy: TwoRows) -> None:
        self.strategy, self.totals = strategy, [0.0]

    def decide(self, rows: Any) -> Decision:
        options = []
        for parent, (row, total) in enumerate(zip(rows, self.totals, strict=True)):
            logprobs = row.logits[-1].double().log_softmax(-1) + total
            best = logprobs.topk(2)
            options += [
                (value, parent, token_id)
                for value, token_id in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
        kept = sorted(options, reverse=True)[:2]
        self.totals = [total for total, _, _ in kept]
        self.strategy.seen.append([(t, [*rows[p].context, i]) for t, p, i in kept])
        _, parent, token_id = kept[0]
        choice = replace(
            self.strategy.choose(rows[parent].logits[-1], rows[parent].context), token_id=token_id
        )
        return Decision(tuple(Continuation(p, (i,)) for _, p, i in kept), (choice,))


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


@dataclass(frozen=True)
class Scripted:
    """Answers what its script says, however the logits are; rows never choose anything."""

    script: tuple[Any, ...]  # decisions, the last one again and again; exceptions are raised
    hidden: list[Any] = field(default_factory=list, compare=False)
    wants_hidden: bool = False
    draws = False
    seed = None
    rows = 2

    def with_seed(self, seed: int) -> Scripted:
        return self

    def choose(self, logits: torch.Tensor, context: Any) -> Any:
        return Greedy().choose(logits, context)

    def decider(self) -> Any:
        return _Scripted(self)


class _Scripted:
    def __init__(self, strategy: Scripted) -> None:
        self.strategy, self.wants_hidden = strategy, strategy.wants_hidden
        self.left = list(strategy.script)

    def decide(self, rows: Any) -> Decision:
        self.strategy.hidden.append([(row.hidden, row.logits) for row in rows])
        decision = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(decision, Exception):
            raise decision
        return decision


QUIET = Decision((Continuation(0, (5,)),))
NOTE = Waiting(77)  # an event is an event


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


# several runs in one pass


def abreast(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a backbone that runs rows together: all whose turn it is, in one pass."""
    scheduler = engine.loop.scheduler

    def everyone(now: float) -> list[Any]:
        return [entry for entry in scheduler.running if entry.run.due(now) == 0]

    monkeypatch.setattr(scheduler, "next", everyone)


def test_runs_that_share_a_pass_are_told_apart(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(threaded=False)
    abreast(engine, monkeypatch)
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


def test_a_fault_of_one_run_in_a_shared_pass_is_its_own(
    build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build(threaded=False)
    abreast(engine, monkeypatch)
    runs = [engine.stream(asked(strategy=s)) for s in (Greedy(), Faulty(), Greedy())]
    with caplog.at_level(logging.CRITICAL):
        assert [drained(run)[-1].reason for run in runs] == ["length", "error", "length"]
    assert runs[0].result().token_ids == runs[2].result().token_ids


def test_a_pass_that_fails_ends_the_runs_in_it_and_no_others(
    build: Build, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build(threaded=False)
    abreast(engine, monkeypatch)
    runs = [engine.stream(asked()) for _ in range(3)]
    engine.step()
    runs[1].pause()
    forward = engine.backbone.forward
    monkeypatch.setattr(engine.backbone, "forward", lambda *_: 1 / 0)
    with caplog.at_level(logging.CRITICAL):
        engine.step()
    monkeypatch.setattr(engine.backbone, "forward", forward)
    runs[1].resume()
    assert [drained(run)[-1].reason for run in runs] == ["error", "length", "error"]


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


# what is no model for this engine


@pytest.mark.parametrize(
    "make",
    [
        lambda: transformers.MambaForCausalLM(
            transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=VOCAB)
        ),
        lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=VOCAB
            )
        ),
        lambda: tiny_models.model("llama").model,
    ],
    ids=["state space", "encoder-decoder", "no head"],
)
def test_only_decoders_with_a_cache_are_taken(make: Callable[[], Any]) -> None:
    with pytest.raises(ModelUnavailable, match="decoder-only"):
        Engine(make(), tiny_models.tokenizer())


@pytest.mark.parametrize(
    "limits",
    [
        {"device": "abacus"},
        {"device": None},
        {"precision": "fp8"},
        {"precision": []},
        {"cache_bytes": 0},
        {"cache_bytes": 1000},  # not one short run would fit
        {"cache_bytes": 2.5},
        {"cache_bytes": float("nan")},
        {"trace_bytes": -1},
        {"max_waiting": 0},
        {"max_waiting": "many"},
    ],
    ids=str,
)
def test_limits_are_checked(limits: dict[str, Any]) -> None:
    with pytest.raises(FieldError) as caught:
        tiny_models.engine(**limits)
    assert caught.value.field == next(iter(limits))


@pytest.fixture(autouse=True, scope="module")
def _closed() -> Iterator[None]:
    yield
    shared().close()
