"""What every tab is built with."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from model import Engine

from .controls import Labelled
from .streaming import Audience


@dataclass(frozen=True)
class Surroundings:
    """What every tab is built with.

    Attributes:
        engine: what decodes.
        i18n: the page's words as gradio resolves them by the browser's language.
        labelled: collects what a language switch has to relabel.
        language: the component that holds the reader's language.
        audience: knows which page watches what.
    """

    engine: Engine
    i18n: gr.I18n
    labelled: Labelled
    language: gr.components.Component
    audience: Audience
