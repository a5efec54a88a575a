"""The tab Speed: why decoding is slow, and what helps. A part a mechanism."""

from __future__ import annotations

import gradio as gr

from .batching_part import BatchingPart
from .surroundings import Surroundings


class SpeedTab:
    """Builds the tab inside the current `gr.Blocks`: a list of parts on top, one of them open.

    Args:
        around: what every tab is built with.
    """

    def __init__(self, around: Surroundings) -> None:
        with gr.Tabs(elem_id="speed-parts"):
            part = gr.Tab(around.i18n("page.batching"), id="batching")
            with around.labelled.add(part, label="page.batching"):
                BatchingPart(around)
