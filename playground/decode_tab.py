"""The tab Decode: type a prompt, watch the model decide, see why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from model import FieldError

from . import settings, streaming, words
from .controls import PACES, Controls
from .live import QUIET, STREAMS
from .settings import KNOBS, PENALTIES
from .stage import stage
from .surroundings import Surroundings

PLACE = "decode"  # what this tab is called among the places of a page that watch runs


class DecodeTab:
    """Builds the tab inside the current `gr.Blocks` and wires it to the engine.

    Args:
        around: what every tab is built with.
    """

    def __init__(self, around: Surroundings) -> None:
        self.engine, self.language = around.engine, around.language
        self.audience = around.audience
        with gr.Row(elem_id="decode"):
            self.controls = Controls(around.engine, around.i18n, around.labelled)
            with gr.Column(elem_id="view", min_width=280):
                self.stage = stage(around.engine, ["strategy", *KNOBS], list(PACES))
        self._wire()

    def _wire(self) -> None:
        controls = self.controls
        values = list(controls.inputs.values())
        started = controls.generate.click(
            self._generate,
            [self.language, *values],
            self.stage,
            js="(...values) => { window.playground?.starting(); return values; }",
            **STREAMS,
        )
        branched = self.stage.branch(self._branch, [self.language, *values], self.stage, **STREAMS)
        for event in (started, branched):  # whatever became of it
            event.then(None, None, None, js="() => { window.playground?.settled(); }")
        knobs = [controls.inputs["strategy"], *(controls.inputs[name] for name in KNOBS)]
        self.stage.seed(_seed_of, None, controls.inputs["seed"], queue=False, **QUIET)
        self.stage.settings(self._set_knobs, None, knobs, queue=False, **QUIET)
        gr.on(
            [knob.change for knob in knobs],
            None,
            knobs,
            None,
            js="(...values) => { window.playground?.knobs(values); }",
        )
        controls.inputs["pace"].change(
            None, controls.inputs["pace"], None, js="(pace) => { window.playground?.pace(pace); }"
        )
        controls.examples.click(
            lambda sample: sample[0],
            controls.examples,
            controls.inputs["prompt"],
            queue=False,
            **QUIET,
        )
        for button, name in (
            (controls.stop, "stop"),
            (controls.pause, "pause"),
            (controls.step, "step"),
            (controls.go_on, "goOn"),
            (controls.reset, "reset"),
        ):
            button.click(None, None, None, js=f"() => {{ window.playground?.{name}(); }}")

    def _values(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.controls.inputs, values, strict=True))

    def _generate(self, request: gr.Request, language: str, *values: Any) -> Iterator[str]:
        """A new run from the prompt."""
        given = self._values(values)
        yield from self._followed(
            lambda: self.engine.stream(settings.request(given)), language, given, request
        )

    def _branch(
        self, request: gr.Request, event: gr.EventData, language: str, *values: Any
    ) -> Iterator[str]:
        """Decode on from a step of an earlier run, or start, as the scripts ask."""
        given, asked = self._values(values), event._data if isinstance(event._data, dict) else {}
        more = asked.get("more")
        more = given["max_new_tokens"] if more is None else more

        def start():
            if asked.get("handle") is None:
                return self.engine.stream(settings.request({**given, "max_new_tokens": more}))
            parent = self.engine.run(asked["handle"])
            run = parent.branch(
                asked.get("at"),
                token_id=asked.get("token_id"),
                strategy=settings.strategy(given),
                more=more,
            )
            parent.cancel()  # only now: what is refused changes nothing
            return run

        yield from self._followed(start, language, given, request)

    def _followed(
        self,
        start: Callable[[], Any],
        language: str,
        given: dict[str, Any],
        request: gr.Request,
    ) -> Iterator[str]:
        """Start a run and send what it reports until it ends or the page goes."""
        session = request.session_hash or ""
        run = None
        try:
            pace = _tokens_per_s(given.get("pace"))
            run = start()
            run.pace(pace)
            self.audience.watch(session, PLACE, [run])
            for message in streaming.follow(self.engine, run, self.audience.frame):
                yield streaming.encoded(message)
        except Exception as error:  # a sentence reaches the reader, whatever it is
            yield streaming.encoded({"error": {"text": words.complaint(language, error)}})
        finally:
            if run is not None:
                run.cancel()
                self.audience.done(session, PLACE, [run])

    def _set_knobs(self, event: gr.EventData) -> list[Any]:
        """The knobs back to what the scripts name: the settings of the run."""
        asked = event._data if isinstance(event._data, dict) else {}
        try:
            shown = settings.shown(settings.strategy(asked))
        except FieldError:
            return [gr.skip() for _ in range(1 + len(KNOBS))]
        if shown["strategy"] == "greedy":  # its run had no say about the other knobs
            names = ("strategy", *PENALTIES)
            return [shown[n] if n in names else gr.skip() for n in ("strategy", *KNOBS)]
        return [shown[name] for name in ("strategy", *KNOBS)]


def _tokens_per_s(choice: Any) -> float | None:
    """What a choice of the pace control means."""
    if not isinstance(choice, int) or isinstance(choice, bool) or not 0 <= choice < len(PACES):
        these = ", ".join(map(str, range(len(PACES))))
        raise FieldError("pace", choice, these, "one_of_these", these=these)
    return PACES[choice]


def _seed_of(event: gr.EventData) -> str:
    """The seed that the scripts name, for its box; it is checked when a run is started with it."""
    return str(event._data.get("seed", ""))[:40] if isinstance(event._data, dict) else ""
