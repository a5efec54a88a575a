"""Live components: drawn in the browser by scripts of our own, fed by events that stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from .assets import PREFIX

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
# The newest press counts: gradio would drop it while an earlier one is still under way.
STREAMS = {"trigger_mode": "multiple", "concurrency_limit": None, **QUIET}


def live(
    script: str,
    place: str,
    elem_id: str,
    *,
    gives: Sequence[str] = ("props", "watch", "server"),
    events: Sequence[str] = (),
    **options: Any,
) -> gr.HTML:
    """A component that a script draws.

    Args:
        script: name of the module whose `connect` gets the element.
        place: class of the element.
        gives: what else of gradio's it gets.
        events: names of the component's own events; gradio looks for them in its script, quoted.
        options: properties, for the script, and `server_functions`.
    """
    named = " ".join(f"'{event}'" for event in events)
    load = f"""
// Events of this component: {named or "none"}.
const root = (window.gradio_config?.root ?? "").replace(/\\/$/, "");
import(root + "{PREFIX}/{script}.js").then((script) =>
  script.connect({{ {", ".join(["element", *gives])}, files: root + "{PREFIX}/" }}));
"""
    return gr.HTML(
        value="",
        html_template=f'<div class="{place}"></div>',
        js_on_load=load,
        elem_id=elem_id,
        apply_default_css=False,
        **options,
    )
