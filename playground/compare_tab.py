"""The tab Compare: one prompt, several strategies side by side, decoding together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import gradio as gr

from model import Engine, FieldError, Request, Run, TextMeasures

from . import settings, streaming, words
from .controls import LENGTH, examples, foreign
from .live import STREAMS, live
from .settings import KNOBS, STRATEGIES
from .stage import answers
from .surroundings import Surroundings

PLACE = "compare"  # what this tab is called among the places of a page that watch runs
FEWEST, MOST = 2, 6  # columns
CANDIDATES = 10  # reported with every step, as many as the picture of one shows at first
START = "stage.compare.start"  # the name of the button


class CompareTab:
    """Builds the tab inside the current `gr.Blocks` and wires it to the engine.

    Everything on it is drawn in the browser; one event starts all columns and brings their news.

    Args:
        around: what every tab is built with.
    """

    def __init__(self, around: Surroundings) -> None:
        engine = self.engine = around.engine
        self.audience = around.audience
        least, most, _ = LENGTH
        self.board = live(
            "compare",
            "compare-place",
            "compare",
            gives=("props", "watch", "trigger", "server"),
            events=("compare",),  # run these columns
            strategies=STRATEGIES,
            knobs=[asdict(knob) for knob in KNOBS.values()],
            length=[least, most],
            columns=[FEWEST, MOST],
            prompts={
                lang: [text for (text,) in examples(engine, lang)] for lang in words.LANGUAGES
            },
            notes={lang: foreign(engine, lang) for lang in words.LANGUAGES},
            server_functions=answers(engine, "look", "steps", "stop"),
        )
        compared = self.board.compare(self._compare, None, self.board, **STREAMS)
        compared.then(  # whatever became of it
            None, None, None, js="() => { window.playgroundCompare?.settled(); }"
        )

    def _compare(self, request: gr.Request, event: gr.EventData) -> Iterator[str]:
        """Start a run a column and send what they report until all have ended."""
        asked = event._data if isinstance(event._data, dict) else {}
        session = request.session_hash or ""
        name = asked.get("comparison")
        about = {"comparison": name if isinstance(name, str) and len(name) <= 40 else ""}
        runs: list[Run | None] = []
        refused: dict[int, str] = {}
        try:
            columns = _columns(asked)
            self.audience.watch(session, PLACE, [])  # its places are free for those to come
            for place, column in enumerate(columns):
                runs.append(None)
                try:  # what one column gets wrong is no matter of the others
                    runs[place] = self.engine.stream(_request(asked, column))
                except Exception as error:
                    refused[place] = _sentence(asked, error)
            self.audience.watch(session, PLACE, filter(None, runs))
            about["columns"] = [run and run.handle for run in runs]
            about["refused"] = refused
            yield streaming.encoded(about)
            for news in _news(self.engine, runs, self.audience.frame):
                yield streaming.encoded({**about, **news})
        except Exception as error:  # a sentence reaches the reader, whatever it is
            yield streaming.encoded({**about, "error": {"text": _sentence(asked, error)}})
        finally:
            started = [run for run in runs if run]
            for run in started:
                run.cancel()
            self.audience.done(session, PLACE, started)


def _columns(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The columns asked for, their number checked; what is in them is checked one by one."""
    columns = asked.get("columns")
    columns = columns if isinstance(columns, list) else []
    if not FEWEST <= len(columns) <= MOST:
        allowed = f"a whole number from {FEWEST} to {MOST}"
        raise FieldError("columns", len(columns), allowed, "whole", low=FEWEST, high=MOST)
    return [column if isinstance(column, dict) else {} for column in columns]


def _request(asked: dict[str, Any], column: dict[str, Any]) -> Request:
    """One column's request: the prompt and the length are everyone's."""
    own = {name: column.get(name) for name in ("strategy", "seed", *KNOBS) if name in column}
    common = {name: asked.get(name) for name in ("prompt", "max_new_tokens")}
    return settings.request({**common, **own, "num_candidates": CANDIDATES})


def _news(
    engine: Engine, runs: list[Run | None], frame: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """What happened in the columns, message by message.

    A page may miss a message where several come at once. So what is true of a column from some
    time on (its end, its measures) is said in every message from then on; missing steps are asked
    for.
    """
    place = {run.handle: i for i, run in enumerate(runs) if run}
    measures = {i: TextMeasures() for i in place.values()}
    told: dict[str, dict[int, Any]] = {"finished": {}, "waiting": {}, "measures": {}}
    for messages in streaming.follow_together(engine, [run for run in runs if run], frame):
        for message in messages:
            i = place[message["run"]]
            for step in message["steps"]:
                measures[i].add(step["id"], step["raw"], step["final"])
            told["measures"][i] = _measured(measures[i])
            if "waiting" in message:
                told["waiting"][i] = message["waiting"]
            if message["steps"] or "finished" in message:
                told["waiting"].pop(i, None)
            if "finished" in message:
                told["finished"][i] = {**message["finished"], "steps": measures[i].tokens}
                del told["finished"][i]["text"]  # its steps have it
        yield {"news": {place[message["run"]]: message for message in messages}, **told}


def _measured(measures: TextMeasures) -> dict[str, float | None]:
    values = {
        "logprob": measures.mean_logprob,
        "final_logprob": measures.mean_final_logprob,
        "distinct_1": measures.distinct(1),
        "distinct_2": measures.distinct(2),
        "repetition": measures.repetition,
    }
    return {name: value if _finite(value) else None for name, value in values.items()}


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _sentence(asked: dict[str, Any], error: Exception) -> str:
    return words.complaint(asked.get("language"), error, button=START)
