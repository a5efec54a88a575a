"""The page as a whole: heading, tabs, languages."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from model import Engine

from . import api, assets, theme, words
from .compare_tab import CompareTab
from .controls import Labelled, examples, radio
from .decode_tab import DecodeTab
from .live import QUIET, live
from .live_status import LiveStatus
from .speed_tab import SpeedTab
from .streaming import Audience
from .surroundings import Surroundings

_STATIC = Path(__file__).parent / "static"
TABS = ("decode", "compare", "speed")
THREADS = 200  # every page that watches a run holds one while it waits for news


def page(engine: Engine, language: str | None = None) -> tuple[gr.Blocks, dict[str, Any]]:
    """The page and what `launch` needs for it.

    Args:
        engine: what decodes.
        language: "en" or "tr" for everyone; None follows each reader's browser.
    """
    i18n = gr.I18n(**{lang: words.flat(lang) for lang in words.LANGUAGES})
    labelled, audience = Labelled(), Audience()
    with gr.Blocks(
        title=words.say(language or words.FALLBACK, "page.title"),
        analytics_enabled=False,
        fill_width=True,
    ) as blocks:
        chosen = _heading(engine, labelled, language)
        around = Surroundings(engine, i18n, labelled, chosen, audience)
        with gr.Tabs(elem_id="tabs"):
            with labelled.add(gr.Tab(i18n("page.decode"), id="decode"), label="page.decode"):
                tab = DecodeTab(around)
            with labelled.add(gr.Tab(i18n("page.compare"), id="compare"), label="page.compare"):
                CompareTab(around)
            with labelled.add(gr.Tab(i18n("page.speed"), id="speed"), label="page.speed"):
                SpeedTab(around)
        api.endpoints(engine)
        _speak(blocks, engine, labelled, chosen, tab.controls.inputs["prompt"], language)
        blocks.unload(_leaver(audience))
    launch = {
        "theme": theme.theme(),
        "css_paths": [_STATIC / "page.css", _STATIC / "batching.css"],
        "head": _head(),
        "i18n": i18n,
        "app_kwargs": {"routes": assets.routes(LiveStatus(engine))},
        "footer_links": ["api"],
        "max_threads": THREADS,
        "ssr_mode": False,
        "show_error": False,
    }
    blocks.queue(default_concurrency_limit=None)
    return blocks, launch


def _heading(engine: Engine, labelled: Labelled, language: str | None) -> gr.Radio:
    with gr.Row(elem_id="heading"):
        labelled.call(
            gr.HTML(_title(words.FALLBACK), elem_id="title", apply_default_css=False),
            lambda lang: {"value": _title(lang)},
        )
        with gr.Column(elem_id="engine", min_width=120):
            labelled.call(
                gr.HTML(_model(engine, words.FALLBACK), elem_id="model", apply_default_css=False),
                lambda lang: {"value": _model(engine, lang)},
            )
            live("status", "status-place", "status", gives=())
        chosen = radio(
            [(name, code) for code, name in words.LANGUAGES.items()],
            value=language or words.FALLBACK,
            show_label=False,
            container=False,
            elem_id="language",
            label="Language / Dil",
            min_width=120,
        )
        night = labelled.add(
            gr.Button(words.say(words.FALLBACK, "page.theme"), size="sm", elem_id="theme"),
            value="page.theme",
        )
        night.click(None, None, None, js="() => { window.playground?.theme(); }")
    return chosen


def _title(lang: str) -> str:
    """The question of every tab; the style sheet shows that of the open one."""
    questions = "".join(
        f'<span class="of-{tab}">{html.escape(words.say(lang, f"page.{tab}_question"))}</span>'
        for tab in TABS
    )
    return f"<h1>{questions}</h1><p>{html.escape(words.say(lang, 'page.title'))}</p>"


def _model(engine: Engine, lang: str) -> str:
    """Model, languages it knows, device, precision and what that means, in one quiet line."""
    info = engine.info
    parts = [info.title if info else engine.name]
    if info and info.languages:
        parts.append(words.languages(lang, info.languages))
    status = engine.status()
    parts.append(status.device)
    spans = [f"<span>{html.escape(part)}</span>" for part in parts]
    kind = "exact" if status.exact else "rounded"
    short = words.say(lang, f"precision.{kind}", precision=status.precision)
    long = words.say(lang, f"precision.{kind}_info")
    spans.append(f'<span title="{html.escape(long)}">{html.escape(short)}</span>')
    return " · ".join(spans)


def _speak(
    blocks: gr.Blocks,
    engine: Engine,
    labelled: Labelled,
    chosen: gr.Radio,
    prompt: gr.Textbox,
    language: str | None,
) -> None:
    """Relabel the page when the reader chooses a language, and when it opens.

    It opens with a prompt of the reader's language where the model knows that.
    """
    options = {"queue": False, **QUIET}
    forced = "null" if language is None else f'"{language}"'
    opened = blocks.load(
        lambda lang: [words.language(lang), *labelled.in_language(lang)],
        chosen,
        [chosen, *labelled.components],
        js=f"() => window.playgroundLanguage({forced})",
        **options,
    )

    def first(lang: str, now: str) -> Any:
        return examples(engine, lang)[0][0] if now == prompt.value else gr.skip()

    opened.then(first, [chosen, prompt], prompt, **options)
    chosen.input(
        labelled.in_language,
        chosen,
        labelled.components,
        js="(lang) => { window.playgroundLanguageChosen(lang); return lang; }",
        **options,
    )


def _head() -> str:
    """What must run before anything is drawn: the language, the theme, the files to come."""
    script = (_STATIC / "before.js").read_text(encoding="utf-8")
    return f"<meta name='referrer' content='same-origin'><script>{script}</script>"


def _leaver(audience: Audience) -> Callable[[gr.Request], None]:
    def left(request: gr.Request) -> None:
        audience.leave(request.session_hash or "")

    return left
