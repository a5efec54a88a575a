"""A run: what its events tell, and what its seed decides."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
import tiny_models
from engine_cases import PROMPT, Build, asked, drained, same_step, shared, untimed
from tiny_models import VOCAB

from model import (
    Busy,
    Engine,
    FieldError,
    Finished,
    Gone,
    Greedy,
    ModelUnavailable,
    Sampling,
    Started,
    Step,
    Waiting,
)
from model.draw import uniform
from model.kv_cache import CHUNK
from model.strategies import Strategy

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
    assert finished.text == "".join(step.text for step in steps)
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
    """Also the report of the whole vocabulary, the prompt, and only its own part of a turn."""
    engine = build(threaded=False)
    ids = [5] * (2 * engine.backbone.pass_tokens + CHUNK)  # of two turns
    request = asked(None, token_ids=ids, num_candidates=VOCAB, max_new_tokens=40)
    run = engine.stream(request)
    company = [engine.stream(asked(max_new_tokens=40)) for _ in range(others)]
    drained(run)
    told = engine.timeline()
    mine = [turn.duration_s for turn in told if run.handle in turn.handles]
    work = sum(step.duration_s for step in run.steps)
    assert work <= sum(mine)
    first = sum(run.handle in turn.prefilling for turn in told)
    assert first > 1
    assert run.steps[0].duration_s <= sum(mine[:first])
    if not others:  # whose choices and reports are part of its turns, too
        assert 0.9 * sum(mine) <= work
        assert run.steps[0].duration_s >= 0.9 * sum(mine[:first])
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
