"""A run: what it reports, how it ends, its seed, its pause and its pace."""

from __future__ import annotations

import gc
import itertools
import pickle
import statistics
import threading
import time
from functools import cache
from typing import Any

import pytest
import tiny_models
from engine_cases import LONG, PROMPT, Build, asked, drained, same_step, shared, turns, untimed
from hypothesis import given, settings
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
    Sampling,
    Started,
    Step,
    Waiting,
)
from model import run as run_module
from model.draw import uniform
from model.kv_cache import CHUNK, capacity
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
    engine = build(cache_bytes=capacity(40) * 256, threaded=False)
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
    first = 2 * engine.backbone.pass_tokens  # what a turn takes while nobody else decodes
    ids = [(7 * i) % VOCAB for i in range(first + CHUNK)]
    run = engine.stream(asked(None, token_ids=ids))
    engine.step()
    run.cancel()
    assert [type(event) for event in drained(run)] == [Started, Finished]
    assert turns(engine, "prefill") == 1
    assert engine.status().cache_bytes == 0
    # What was computed is not lost.
    again = drained(engine.stream(asked(None, token_ids=ids)))
    assert again[-1].reused == first
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
    for _ in range(2):
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
    ids = [(7 * i) % VOCAB for i in range(5 * engine.backbone.pass_tokens)]
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
    ids = [5] * (5 * engine.backbone.pass_tokens)  # two turns, twice as much each, and a half
    run = engine.stream(asked(None, token_ids=ids, max_new_tokens=9))
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
    apart = statistics.median(b - a for a, b in itertools.pairwise(times[-6:]))
    assert apart == pytest.approx(1 / 40, rel=0.5)  # one that a busy machine held up is no matter
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
