"""The stage: the live part of the Decode tab, drawn in the browser from what the engine reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from model import Engine

from . import messages, settings, words
from .live import live


def stage(engine: Engine, knobs: list[str], paces: list[float | None]) -> gr.HTML:
    """The component. Its value is the newest message; the scripts ask for the rest themselves.

    Args:
        engine: what decodes.
        knobs: names of the settings in the order in which the scripts are told their values.
        paces: what the choices of the pace control mean, tokens a second.
    """
    return live(
        "decode",
        "stage-place",
        "stage",
        gives=("props", "watch", "trigger", "server"),
        # Decode on from a step; set the knobs; set the seed.
        events=("branch", "settings", "seed"),
        knobs=knobs,
        paces=paces,
        server_functions=answers(engine),
    )


def answers(engine: Engine, *names: str) -> list[Callable[[Any], dict[str, Any]]]:
    """What the scripts may ask, each answered with plain data or {"error": {"text": …}}.

    Args:
        names: which of them; all where none is named.
    """

    def answered(name: str, answer: Callable[[dict[str, Any]], dict[str, Any]]):
        def ask(payload: Any) -> dict[str, Any]:
            asked = payload if isinstance(payload, dict) else {}
            try:
                return answer(asked)
            except Exception as error:  # a sentence reaches the reader, never a traceback
                return {"error": {"text": words.complaint(asked.get("language"), error)}}

        ask.__name__ = name
        return ask

    def look(asked: dict[str, Any]) -> dict[str, Any]:
        """A step under other settings, without a model run."""
        count = asked.get("candidates", 20)
        count = settings.candidates(count)
        step = _run(engine, asked).reweigh(asked.get("index"), _strategy(asked), count)
        return {"step": messages.step(engine, step)}

    def redraw(asked: dict[str, Any]) -> dict[str, Any]:
        """A step drawn again with fresh numbers, tallied."""
        times = asked.get("times", 100)
        counts = _run(engine, asked).redraw(asked.get("index"), times, _strategy(asked))
        return {"counts": counts.most_common()}

    def steps(asked: dict[str, Any]) -> dict[str, Any]:
        """What a page missed of a run."""
        run = _run(engine, asked)
        start = asked.get("from")
        known = isinstance(start, int) and not isinstance(start, bool) and start > 0
        return messages.whole_run(engine, run, min(start, len(run.steps)) if known else 0)

    def stop(asked: dict[str, Any]) -> dict[str, Any]:
        _run(engine, asked).cancel()
        return {}

    def pause(asked: dict[str, Any]) -> dict[str, Any]:
        run = _run(engine, asked)
        if asked.get("paused"):
            run.pause(1 if asked.get("step") else 0)
        else:
            run.resume()
        return {}

    def pace(asked: dict[str, Any]) -> dict[str, Any]:
        _run(engine, asked).pace(asked.get("tokens_per_s"))
        return {}

    asks = (look, redraw, steps, stop, pause, pace)
    return [answered(ask.__name__, ask) for ask in asks if not names or ask.__name__ in names]


def _run(engine: Engine, asked: dict[str, Any]):
    return engine.run(asked.get("handle"))


def _strategy(asked: dict[str, Any]):
    """The settings asked for; None are the step's own."""
    given = asked.get("settings")
    return settings.strategy(given) if isinstance(given, dict) else None
