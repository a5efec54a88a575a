"""What the part Batching sends, on a tiny model and without a browser."""

from __future__ import annotations

import itertools
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from engine_cases import shared

from playground import batching_lab
from playground.batching_lab import WAYS, Lab, workload
from playground.batching_part import OFFERS, BatchingPart
from playground.controls import Labelled
from playground.streaming import Audience
from playground.surroundings import Surroundings

PROMPTS = ["once upon a time", "the cat is on the mat"]
VALUES = {"requests": 6, "shortest": 2, "longest": 9, "spread_s": 0, "slots": 3, "seed": "7"}


@pytest.fixture(autouse=True)
def _short_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching_lab, "FRAME", 0.005)


@pytest.fixture
def part(engine) -> BatchingPart:
    return built(engine)


@pytest.fixture(scope="module")
def idle_part() -> BatchingPart:
    """For what is refused before anything runs."""
    return built(shared())


def built(engine) -> BatchingPart:
    with gr.Blocks():
        language = gr.Radio(["en", "tr"])
        return BatchingPart(Surroundings(engine, gr.I18n(), Labelled(), language, Audience()))


def pressed(part: BatchingPart, language: str = "en", session: str = "page", **values: Any):
    request = SimpleNamespace(session_hash=session)
    given = {**VALUES, **values}
    for message in part._run(request, language, *(given[name] for name in part.inputs)):
        yield json.loads(message)


def test_the_last_message_holds_what_the_rounds_measured(engine) -> None:
    lab = Lab(engine, workload(VALUES, PROMPTS))
    *_, last = lab.messages()
    assert last["ended"] == "done"
    assert [round_["way"] for round_ in last["rounds"]] == list(WAYS)
    for told, round_ in zip(last["rounds"], lab.rounds, strict=True):
        measured = told["measures"]
        assert measured["tokens_per_s"] == round_.measures.tokens_per_s
        ends = [end for _, _, end, _ in told["passages"]]
        moments = [list(itertools.accumulate(gaps)) for *_, gaps in told["passages"]]
        arrivals = [arrival for _, _, arrival in last["requests"]]
        waits = [steps[0] - came for steps, came in zip(moments, arrivals, strict=True)]
        assert [len(steps) for steps in moments] == [count for _, count, _ in last["requests"]]
        assert measured["tokens"] == sum(map(len, moments))
        assert measured["total_s"] * 1000 == pytest.approx(max(ends), abs=1)
        assert measured["mean_wait_s"] * 1000 == pytest.approx(sum(waits) / len(waits), abs=2)
        assert measured["worst_wait_s"] * 1000 == pytest.approx(max(waits), abs=2)


def test_every_message_says_it_all_and_nothing_is_taken_back(engine) -> None:
    lab = Lab(engine, workload({**VALUES, "spread_s": 0.1, "longest": 40}, PROMPTS))
    messages = list(lab.messages())
    assert len(messages) > 6
    assert all(message["requests"] == messages[0]["requests"] for message in messages)
    for one, after in itertools.pairwise(messages):
        for before, now in zip(one["rounds"], after["rounds"], strict=False):
            # Only its end is put back, to the last token.
            assert before["now"] <= now["now"] or now["measures"]
            for old, new in zip(before["passages"], now["passages"], strict=True):
                assert old[3] == new[3][: len(old[3])] or new[2] is not None
                assert old[0] in (None, new[0])


def test_the_warm_up_counts_nowhere(engine) -> None:
    lab = Lab(engine, workload(VALUES, PROMPTS))
    *_, last = lab.messages()
    assert len(last["rounds"]) == 2
    handles = {handle for turn in engine.timeline() for handle in turn.handles}
    counted = {passage.run.handle for round_ in lab.rounds for passage in round_.passages}
    assert len(counted) == 12 < len(handles)


@pytest.mark.parametrize("name", [*OFFERS, "seed"])
@pytest.mark.parametrize("value", [-1, 1e17, "<b>", None, [3], float("nan"), {"a": 1}])
def test_a_wrong_value_is_answered_with_field_value_and_range(idle_part, name: str, value) -> None:
    if name == "seed" and (value is None or value != value):  # a seed may be left open
        return
    (message,) = pressed(idle_part, **{name: value})
    text = message["error"]["text"]
    label = {"requests": "Texts", "spread_s": "Arrivals, seconds"}.get(name, name.capitalize())
    assert text.startswith(label)
    assert "Allowed: a" in text
    if value in (-1, "<b>"):
        assert str(value) in text


def test_the_sentence_is_in_the_readers_language(idle_part) -> None:
    (message,) = pressed(idle_part, language="tr", slots=99)
    assert message["error"]["text"].startswith("Yuva sayısı için “99” geçerli değil")


def test_what_the_sliders_offer_is_allowed() -> None:
    for name, (low, high, _, _) in OFFERS.items():
        for value in (low, high):
            whole = {**VALUES, "shortest": 1, "longest": 64, name: value}
            assert workload(whole, PROMPTS)


def test_a_second_lab_of_a_page_ends_the_first_and_that_of_another_page_does_not(part) -> None:
    first, other = pressed(part, longest=64, shortest=64), pressed(part, session="other")
    next(first)
    next(other)
    assert list(pressed(part))[-1]["ended"] == "done"
    assert list(first)[-1]["ended"] == "stopped"
    assert list(other)[-1]["ended"] == "done"


def test_closing_the_page_ends_its_lab(part) -> None:
    lab = pressed(part, longest=64, shortest=64)
    next(lab)
    part.audience.leave("page")
    assert list(lab)[-1]["ended"] == "stopped"


def test_dropping_the_connection_ends_the_lab(part, engine) -> None:
    lab = pressed(part, longest=64, shortest=64, requests=32)
    next(lab)
    lab.close()
    time.sleep(0.2)
    assert engine.status().running == engine.status().waiting == 0


def test_stop_takes_the_handle_of_a_lab_and_nothing_else(part) -> None:
    stop = part._stopper()
    for odd in (None, [], {"lab": None}, {"lab": ["x"]}, {"lab": "x"}):
        assert stop(odd) == {}
    lab = pressed(part, longest=64, shortest=64, spread_s=30)
    handle = next(lab)["lab"]
    threading.Timer(0.1, stop, [{"lab": handle}]).start()
    *_, last = lab
    assert last["ended"] == "stopped"
    assert part._labs == {}


def test_a_fault_of_the_engine_becomes_a_sentence(part, engine, monkeypatch) -> None:
    def break_down(*_: Any, **__: Any):
        raise RuntimeError("/secret/path is gone")

    monkeypatch.setattr(engine.backbone, "forward", break_down)
    *_, last = pressed(part)
    assert "press Run both" in last["error"]["text"]
    assert "secret" not in json.dumps(last)
