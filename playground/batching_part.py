"""The part Batching of the tab Speed: set a workload, watch it run in both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from . import streaming, words
from .batching_lab import WAYS, Lab, workload
from .controls import examples, slider
from .live import STREAMS, live
from .surroundings import Surroundings

PLACE = "batching"  # what this part is called among the places of a page that watch something
# What the sliders offer: least, most, step, at first.
OFFERS = {
    "requests": (2, 32, 1, 12),
    "shortest": (1, 64, 1, 4),
    "longest": (1, 64, 1, 48),
    "spread_s": (0, 30, 0.5, 0),
    "slots": (1, 8, 1, 4),
}


class BatchingPart:
    """Builds the part inside the current `gr.Blocks` and wires it to the engine.

    Args:
        around: what every tab is built with.
    """

    def __init__(self, around: Surroundings) -> None:
        self.engine, self.audience = around.engine, around.audience
        self._i18n, self._labelled = around.i18n, around.labelled
        self.inputs: dict[str, Any] = {}
        self._labs: dict[str, Lab] = {}
        with gr.Row(elem_id="batching"):
            with gr.Column(elem_id="batching-controls", min_width=280):
                self._controls()
            with gr.Column(elem_id="batching-view", min_width=280):
                self.view = live(
                    "batching",
                    "batching-place",
                    "batching-pictures",
                    ways=WAYS,
                    server_functions=[self._stopper()],
                )
        started = self.run.click(
            self._run,
            [around.language, *self.inputs.values()],
            self.view,
            js="(...values) => { window.playgroundBatching?.starting(); return values; }",
            **STREAMS,
        )
        # Whatever became of it:
        started.then(None, None, None, js="() => { window.playgroundBatching?.settled(); }")
        self.stop.click(None, None, None, js="() => { window.playgroundBatching?.stop(); }")

    def _controls(self) -> None:
        with gr.Row(elem_id="batching-buttons"):
            self.run = self._labelled.add(
                gr.Button(self._i18n("batching.run"), variant="primary", elem_id="batching-run"),
                value="batching.run",
            )
            self.stop = self._labelled.add(
                gr.Button(self._i18n("batching.stop"), variant="stop", elem_id="batching-stop"),
                value="batching.stop",
            )
        for name, (low, high, step, value) in OFFERS.items():
            self.inputs[name] = self._labelled.add(
                slider(
                    low,
                    high,
                    value=value,
                    step=step,
                    precision=0 if step == 1 else None,
                    label=self._i18n(f"fields.{name}"),
                    info=self._i18n(f"batching.{name}_info"),
                    elem_id=f"batching-{name}",
                ),
                label=f"fields.{name}",
                info=f"batching.{name}_info",
            )
        self.inputs["seed"] = self._labelled.add(
            gr.Textbox(
                value="7",
                label=self._i18n("fields.seed"),
                info=self._i18n("batching.seed_info"),
                placeholder=self._i18n("controls.seed_hint"),
                max_lines=1,
                elem_id="batching-seed",
            ),
            label="fields.seed",
            info="batching.seed_info",
            placeholder="controls.seed_hint",
        )

    def _run(self, request: gr.Request, language: str, *values: Any) -> Iterator[str]:
        """Both rounds, told until they are over or the page goes; what ran here before ends."""
        session, lab = request.session_hash or "", None
        try:
            given = dict(zip(self.inputs, values, strict=True))
            prompts = [text for (text,) in examples(self.engine, words.language(language))]
            lab = Lab(self.engine, workload(given, prompts))
            self._labs[lab.handle] = lab
            self.audience.watch(session, PLACE, [lab])
            for message in lab.messages():
                yield streaming.encoded(message)
        except Exception as error:  # a sentence reaches the reader, whatever it is
            told = {"error": {"text": words.complaint(language, error, "batching.run")}}
            yield streaming.encoded(told | ({"lab": lab.handle} if lab else {}))
        finally:
            if lab is not None:
                lab.cancel()
                self._labs.pop(lab.handle, None)
                self.audience.done(session, PLACE, [lab])

    def _stopper(self):
        def stop(payload: Any) -> dict[str, Any]:
            """End a lab, as its page asks by its handle."""
            handle = payload.get("lab") if isinstance(payload, dict) else None
            lab = self._labs.get(handle) if isinstance(handle, str) else None
            if lab is not None:
                lab.cancel()
            return {}

        return stop
