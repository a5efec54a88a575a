"""The tab Speed: why decoding is slow, and what helps. A part a mechanism."""

from __future__ import annotations

import gradio as gr

from model import Engine

from .batching_part import BatchingPart
from .controls import Labelled
from .streaming import Audience


class SpeedTab:
    """Builds the tab inside the current `gr.Blocks`: a list of parts on top, one of them open.

    Args:
        engine: what decodes.
        i18n: the page's words as gradio resolves them by the browser's language.
        labelled: collects what a language switch has to relabel.
        language: the component that holds the reader's language.
        audience: knows which page watches what.
    """

    def __init__(
        self,
        engine: Engine,
        i18n: gr.I18n,
        labelled: Labelled,
        language: gr.components.Component,
        audience: Audience,
    ) -> None:
        with gr.Tabs(elem_id="speed-parts"):
            part = gr.Tab(i18n("page.batching"), id="batching")
            with labelled.add(part, label="page.batching"):
                BatchingPart(engine, i18n, labelled, language, audience)
