"""The controls of the tab Decode: prompt, buttons and knobs, in the reader's language."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from model import Engine

from . import settings, words
from .settings import KNOBS, STRATEGIES

LENGTH = (1, 512, settings.LENGTH)  # tokens: least, most, at first
PACES = (1, 3, 10, None)  # tokens a second; None: as fast as it goes
IN_VIEW = ("temperature", "top_k", "top_p")


def unchecked(component: Any) -> Any:
    """The component, its value not checked by gradio, which complains in English, but by us."""
    component.preprocess = lambda payload: payload
    return component


def slider(*range_: float, **options: Any) -> gr.Slider:
    return unchecked(gr.Slider(*range_, **options))


def radio(*choices: Any, **options: Any) -> gr.Radio:
    return unchecked(gr.Radio(*choices, **options))


def effect_line(name: str) -> None:
    """What a setting does to the shown step right now; the page's scripts write it."""
    gr.HTML(
        "",
        html_template="",
        js_on_load=None,
        elem_classes=["effect"],
        elem_id=f"effect-{name}",
        apply_default_css=False,
    )


@dataclass
class Labelled:
    """Components whose words change with the language: how each one is written."""

    updates: list[tuple[gr.blocks.Block, Callable[[str], dict[str, Any]]]] = field(
        default_factory=list
    )

    def add(self, component: Any, **keys: str) -> Any:
        """`add(button, value="controls.stop")`: that property takes that key's text."""
        self.updates.append(
            (component, lambda lang: {p: words.say(lang, key) for p, key in keys.items()})
        )
        return component

    def call(self, component: Any, made: Callable[[str], dict[str, Any]]) -> Any:
        self.updates.append((component, made))
        return component

    @property
    def components(self) -> list[Any]:
        return [component for component, _ in self.updates]

    def in_language(self, language: str) -> list[Any]:
        return [gr.update(**made(words.language(language))) for _, made in self.updates]


class Controls:
    """Builds the controls inside the current `gr.Blocks`.

    Args:
        engine: what decodes; says what its model knows.
        i18n: the page's words as gradio resolves them by the browser's language.
        labelled: collects what a language switch has to relabel.

    Attributes:
        inputs: by name, everything that makes a request.
        generate, stop, pause, step, go_on, reset: the buttons.
        examples: prompts to start from.
    """

    def __init__(self, engine: Engine, i18n: gr.I18n, labelled: Labelled) -> None:
        self.engine, self._t, self._labelled = engine, i18n, labelled
        self.inputs: dict[str, Any] = {}
        with gr.Column(elem_id="controls", min_width=280):
            with gr.Column(elem_id="ask", min_width=280):
                self._ask()
            with (
                gr.Column(elem_id="knobs", min_width=280),
                # Folded on a phone; a wide page shows what is in it, not that it could fold.
                self._word(gr.Accordion, label_="controls.settings", open=True, elem_id="fold"),
            ):
                self._knobs()

    def _word(self, make: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """A component whose options of the form `label_="key"` are words of the page."""
        keys = {k[:-1]: v for k, v in options.items() if k.endswith("_") and isinstance(v, str)}
        plain = {k: v for k, v in options.items() if k[:-1] not in keys or not k.endswith("_")}
        shown = {k: self._t(v) for k, v in keys.items()}
        return self._labelled.add(make(*args, **plain, **shown), **keys)

    def _ask(self) -> None:
        first = words.flat(words.FALLBACK)
        self.inputs["prompt"] = self._labelled.call(
            gr.Textbox(
                value=first["examples.first"],
                label=self._t("controls.prompt"),
                placeholder=self._t("controls.prompt_hint"),
                lines=3,
                max_lines=8,
                elem_id="prompt",
                max_length=settings.LONGEST_TYPED,
            ),
            lambda lang: {
                "label": words.say(lang, "controls.prompt"),
                "placeholder": words.say(lang, "controls.prompt_hint"),
                "info": foreign(self.engine, lang),
            },
        )
        with gr.Row(elem_id="main-buttons"):
            button = self._word
            self.generate = button(
                gr.Button, value_="controls.generate", variant="primary", elem_id="generate"
            )
            self.stop = button(gr.Button, value_="controls.stop", variant="stop", elem_id="stop")
        with gr.Row(elem_id="small-buttons"):
            self.pause = button(gr.Button, value_="controls.pause", size="sm", elem_id="pause")
            self.step = button(gr.Button, value_="controls.step", size="sm", elem_id="step")
            self.go_on = button(gr.Button, value_="controls.go_on", size="sm", elem_id="go-on")
            self.reset = button(gr.Button, value_="controls.reset", size="sm", elem_id="reset")
        self.inputs["pace"] = self._labelled.call(
            radio(
                [(self._t(f"controls.pace_{i}"), i) for i in range(len(PACES))],
                value=len(PACES) - 1,
                label=self._t("controls.pace"),
                elem_id="pace",
            ),
            lambda lang: {
                "choices": [(words.say(lang, f"controls.pace_{i}"), i) for i in range(len(PACES))],
                "label": words.say(lang, "controls.pace"),
            },
        )
        self.examples = self._labelled.call(
            gr.Dataset(
                components=[self.inputs["prompt"]],
                samples=examples(self.engine, words.FALLBACK),
                label=self._t("controls.examples"),
                elem_id="examples",
                type="values",
                samples_per_page=20,
            ),
            lambda lang: {
                "samples": examples(self.engine, lang),
                "label": words.say(lang, "controls.examples"),
            },
        )

    def _knobs(self) -> None:
        def strategies(lang: str) -> list[tuple[str, str]]:
            return [(words.say(lang, f"controls.{name}"), name) for name in STRATEGIES]

        self.inputs["strategy"] = self._labelled.call(
            radio(
                [(self._t(f"controls.{name}"), name) for name in STRATEGIES],
                value=STRATEGIES[0],
                label=self._t("controls.strategy"),
                elem_id="strategy",
            ),
            lambda lang: {
                "choices": strategies(lang),
                "label": words.say(lang, "controls.strategy"),
            },
        )
        for name in IN_VIEW:
            self._knob(name)
        least, most, at_first = LENGTH
        self.inputs["max_new_tokens"] = self._word(
            slider,
            least,
            most,
            value=at_first,
            step=1,
            label_="fields.max_new_tokens",
            info_="controls.max_new_tokens_info",
            elem_id="max_new_tokens",
        )
        self.inputs["seed"] = self._word(
            gr.Textbox,
            value="",
            label_="fields.seed",
            info_="controls.seed_info",
            placeholder_="controls.seed_hint",
            elem_id="seed",
            max_lines=1,
        )
        effect_line("seed")
        with self._word(gr.Accordion, label_="controls.more", open=False, elem_id="more"):
            self._more()

    def _more(self) -> None:
        for name in KNOBS:
            if name not in IN_VIEW:
                self._knob(name)
        self.inputs["stop"] = self._word(
            gr.Textbox,
            value="",
            label_="fields.stop",
            info_="controls.stop_info",
            lines=1,
            max_lines=4,
            elem_id="stop-strings",
        )
        chats = bool(getattr(self.engine.tokenizer, "chat_template", None))
        self.inputs["chat"] = self._word(
            gr.Checkbox,
            value=False,
            label_="fields.chat",
            info_="controls.chat_info",
            visible=chats,
            elem_id="chat",
        )
        self.inputs["system"] = self._word(
            gr.Textbox,
            value="",
            label_="fields.system",
            info_="controls.system_info",
            lines=1,
            max_lines=4,
            visible=False,
            elem_id="system",
        )
        self.inputs["chat"].change(
            lambda on: gr.update(visible=bool(on)),
            self.inputs["chat"],
            self.inputs["system"],
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )

    def _knob(self, name: str) -> None:
        knob = KNOBS[name]
        self.inputs[name] = self._word(
            slider,
            knob.low,
            knob.high,
            value=knob.value,
            step=knob.step,
            precision=0 if knob.whole else None,
            label_=f"fields.{name}",
            info_=f"controls.{name}_info",
            elem_id=f"knob-{name}",
        )
        effect_line(name)


def spoken(engine: Engine) -> tuple[str, ...]:
    """The languages that the model was trained on, as far as the catalogue knows."""
    return engine.info.languages if engine.info else ()


def examples(engine: Engine, language: str) -> list[list[str]]:
    """Example prompts that the model can go on with; the first is what the page opens with."""
    turkish = {"tr", "mul"} & set(spoken(engine))
    texts = words.flat(words.language(language))
    keys = [key for key in texts if key.startswith("examples.")]
    keys = [key for key in keys if turkish or "turkish" not in key]
    if language == "tr":
        keys.sort(key=lambda key: "turkish" not in key)
    return [[texts[key]] for key in keys]


def foreign(engine: Engine, language: str) -> str | None:
    """A word of warning to a reader whose language the model was not trained on."""
    known = spoken(engine)
    if not known or language in known or "mul" in known:
        return None
    return words.say(language, "controls.one_language", languages=words.languages(language, known))
