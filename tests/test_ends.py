"""The end of a run: stop strings, end tokens, the limit of the context, and `cancel`."""

from __future__ import annotations

import gc
from functools import cache

import pytest
import tiny_models
from engine_cases import LONG, PROMPT, Build, asked, drained, failing, shared, turns
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import VOCAB

from model import Engine, Finished, Greedy, Sampling, Started, Step, Waiting
from model.kv_cache import CHUNK, capacity

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
    first = next(filter(None, pieces))  # after bytes of no character, if there are some
    result = shared().generate(asked(stop=first))
    written = (result.text, result.finish_reason, len(result.token_ids))
    assert written == ("", "stop", pieces.index(first) + 1)


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


@pytest.mark.parametrize("end", ["length", "stop", "error", "cancelled"])
@pytest.mark.usefixtures("faults_are_meant")
def test_who_reads_an_end_finds_all_of_it_told(
    build: Build, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Its last turn is on the timeline, its rows are free and nobody counts as running."""
    engine = build(threaded=False)
    stop = "".join(free_run()[1][:3])
    run = engine.stream(asked(max_new_tokens=4, stop=(stop,) if end == "stop" else ()))
    if end == "error":
        failing(monkeypatch, Sampling, "choose", ValueError, at=3)
    told = []
    run.then(lambda: told.append((engine.timeline(), engine.status(), engine.backbone.slots.used)))
    while not told:
        if end == "cancelled" and len(run.steps) == 2:
            run.cancel()
        engine.step()
    ((turns, status, used),) = told
    assert run.finished.reason == end
    assert sum(turn.written for turn in turns) == len(run.steps)
    assert len(turns) == len(run.steps) + (end == "error")
    assert status.running == status.waiting == used == 0
    assert turns == engine.timeline()


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
    assert forced.steps[1].text == ""
    assert tiny_models.END not in forced.finished.text


@pytest.mark.parametrize("left", [1, 2, 7])
def test_the_context_bounds_the_run(build: Build, left: int) -> None:
    engine = build("gpt2", context=64)  # its learnt positions end there
    run = engine.stream(asked(None, token_ids=[5] * (64 - left), max_new_tokens=500))
    events = drained(run)
    assert events[0].max_new_tokens == left
    assert (events[-1].reason, len(run.steps)) == ("length", left)


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
