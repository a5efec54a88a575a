"""What the tab Compare sends, on a tiny model and without a browser."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from model import Busy, TextMeasures
from playground import streaming
from playground.compare_tab import CompareTab
from playground.controls import Labelled
from playground.streaming import Audience
from playground.surroundings import Surroundings

GREEDY, SAMPLING = {"strategy": "greedy"}, {"strategy": "sampling", "seed": 1}


@pytest.fixture(autouse=True)
def _no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "FRAME", 0.001)


@pytest.fixture
def tab(engine) -> CompareTab:
    with gr.Blocks():
        return CompareTab(Surroundings(engine, gr.I18n(), Labelled(), gr.Radio(), Audience()))


def asked(**more: Any) -> dict[str, Any]:
    return {
        "comparison": "one",
        "language": "en",
        "prompt": "once upon a time",
        "max_new_tokens": 8,
        "columns": [GREEDY, SAMPLING],
        **more,
    }


def told(tab: CompareTab, data: Any) -> list[dict[str, Any]]:
    request, event = SimpleNamespace(session_hash="page"), SimpleNamespace(_data=data)
    return [json.loads(message) for message in tab._compare(request, event)]


def test_the_first_message_names_all_runs_and_the_last_has_all_ends_and_measures(tab) -> None:
    messages = told(tab, asked())
    assert [message["comparison"] for message in messages] == ["one"] * len(messages)
    first, last = messages[0], messages[-1]
    assert len(set(first["columns"])) == 2
    assert set(last["finished"]) == set(last["measures"]) == {"0", "1"}
    for place in ("0", "1"):
        news = [message["news"][place] for message in messages[1:] if place in message["news"]]
        steps = [step for message in news for step in message["steps"]]
        assert len(steps) == last["finished"][place]["steps"] == 8
        measures = TextMeasures()
        for step in steps:
            measures.add(step["id"], step["raw"], step["final"])
        assert last["measures"][place]["logprob"] == pytest.approx(measures.mean_logprob)
        assert last["measures"][place]["repetition"] == measures.repetition


def test_what_is_refused_is_said_in_every_message_and_the_others_go_on(tab) -> None:
    columns = [GREEDY, {**SAMPLING, "temperature": "warm"}, {**SAMPLING, "seed": "seven"}]
    messages = told(tab, asked(columns=columns))
    for message in messages:
        assert [place for place, run in enumerate(message["columns"]) if run] == [0]
        assert "warm" in message["refused"]["1"]
        assert "seven" in message["refused"]["2"]
    assert messages[-1]["finished"]["0"]["reason"] == "length"


def test_a_full_queue_is_said_in_its_column_alone(tab, engine, monkeypatch) -> None:
    stream, calls = engine.stream, []

    def full(request):
        calls.append(request)
        if len(calls) == 2:
            raise Busy(12.0)
        return stream(request)

    monkeypatch.setattr(engine, "stream", full)
    messages = told(tab, asked(columns=[GREEDY, SAMPLING, SAMPLING], language="tr"))
    assert list(messages[-1]["refused"]) == ["1"]
    assert "12 sn" in messages[-1]["refused"]["1"]
    assert set(messages[-1]["finished"]) == {"0", "2"}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "columns",
        {},
        asked(columns=None),
        asked(columns=[GREEDY]),
        asked(columns=[GREEDY] * 7),
        asked(columns={"length": 3}),
        asked(comparison={"a": 1}, columns=[]),
        asked(comparison="x" * 1000, columns=[]),
    ],
)
def test_a_comparison_that_makes_no_sense_gets_one_sentence(tab, data) -> None:
    (message,) = told(tab, data)
    assert "2 to 6" in message["error"]["text"]
    assert len(message["comparison"]) <= 40


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": None},
        {"prompt": ["a"]},
        {"prompt": "\ud800"},
        {"max_new_tokens": 0},
        {"max_new_tokens": "many"},
        {"columns": [7, None]},
        {"columns": [{"strategy": "best"}, {"strategy": {}}]},
        {"columns": [{"top_k": -1}, {"top_p": []}]},
        {"columns": [{"repetition_penalty": True}, {"no_repeat_ngram_size": 1e999}]},
        {"language": 7, "prompt": 7},
    ],
)
def test_bad_values_are_answered_and_never_raise(tab, more) -> None:
    messages = told(tab, asked(**more))
    last = messages[-1]
    assert "error" not in last
    for place in ("0", "1"):
        assert place in last["refused"] or last["finished"][place]["reason"] == "length"
    assert last["refused"] or more["columns"] == [7, None]  # nothing given is all neutral


def test_a_stream_that_is_closed_ends_its_runs(tab, engine) -> None:
    request = SimpleNamespace(session_hash="page")
    event = SimpleNamespace(_data=asked(max_new_tokens=900))
    stream = tab._compare(request, event)
    first = json.loads(next(stream))
    next(stream)
    stream.close()
    for handle in first["columns"]:
        assert engine.run(handle).result().finish_reason == "cancelled"
    assert tab.audience._runs == {}


def test_a_new_comparison_of_a_page_ends_its_old_one(tab, engine) -> None:
    request = SimpleNamespace(session_hash="page")
    event = SimpleNamespace(_data=asked(max_new_tokens=900))
    old = tab._compare(request, event)
    handles = json.loads(next(old))["columns"]
    assert told(tab, asked(comparison="two"))[-1]["comparison"] == "two"
    for handle in handles:
        assert engine.run(handle).result().finish_reason == "cancelled"
    assert {m["reason"] for m in json.loads(list(old)[-1])["finished"].values()} == {"cancelled"}
