"""The engine: the runs that it knows, many requests at once, what it takes and refuses."""

from __future__ import annotations

import itertools
import logging
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import transformers
from deciders import Faulty, TwoRows
from engine_cases import Build, asked, drained, shared
from tiny_models import VOCAB

from model import Engine, FieldError, Gone, ModelUnavailable, kv_cache
from model.kv_cache import CHUNK, capacity

# what it is asked and tells


def test_score_weighs_a_given_text() -> None:
    text = "The cat is on the mat"
    steps = shared().score(text, num_candidates=3)
    assert "".join(step.text for step in steps) == text
    assert all(step.forced and step.draw is None for step in steps)
    assert all(step.token_id in [c.token_id for c in step.candidates] for step in steps)
    assert shared().score("") == []
    written = tiny_models.START + text  # a start token that is there already is not put twice
    assert [s.token_id for s in shared().score(written)] == [s.token_id for s in steps]


def test_settings_with_more_rows_have_less_room(build: Build) -> None:
    engine = build(cache_bytes=capacity(200) * 256, threaded=False)
    assert drained(engine.stream(asked("x", max_new_tokens=500)))[0].max_new_tokens == 255
    narrow = engine.stream(asked("x", strategy=TwoRows(), max_new_tokens=500))
    room = kv_cache.longest(capacity(200) // 2)
    assert drained(narrow)[0].max_new_tokens == room - 1
    with pytest.raises(FieldError, match=f"at most {room - 1} tokens"):
        engine.stream(asked(None, token_ids=[5] * room, strategy=TwoRows()))
    long = engine.stream(asked("x", max_new_tokens=room + 5))
    drained(long)
    with pytest.raises(FieldError, match=f"at most {room - 1} tokens"):
        long.branch(strategy=TwoRows())
    assert drained(engine.stream(asked(None, token_ids=[5] * room, max_new_tokens=1)))


def test_status_and_timeline(build: Build) -> None:
    engine = build(cache_bytes=capacity(40) * 256, threaded=False)
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


def test_as_a_context_manager_it_closes() -> None:
    with tiny_models.engine() as engine:
        run = engine.stream(asked(max_new_tokens=900))
    assert drained(run)[-1].reason in ("cancelled", "length")


# runs, found again


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


# many requests


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
    first, *others = dict.fromkeys(h for turn in engine.timeline() for h in turn.handles)
    assert len(others) == 40
    assert all(first in turn.handles for turn in engine.timeline())
    # Three at a time beside it: all were over long before it was.
    last = max(i for i, turn in enumerate(engine.timeline()) if len(turn.handles) > 1)
    assert last < 100


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
    engine = build(max_waiting=1, threaded=False, cache_bytes=capacity(40) * 256)
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
