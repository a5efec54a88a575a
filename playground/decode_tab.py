"""The tab Decode: type a prompt, watch the model decide, see why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from model import Busy, Engine, FieldError, Gone

from . import settings, streaming, words
from .settings import KNOBS, PENALTIES, STRATEGIES
from .stage import stage
from .streaming import Audience

log = logging.getLogger(__name__)
LENGTH = (1, 512, settings.LENGTH)  # tokens: least, most, at first
PACES = (1, 3, 10, None)  # tokens a second; None: as fast as it goes
IN_VIEW = ("temperature", "top_k", "top_p")
EXPECTED = (FieldError, Busy, Gone)


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


class DecodeTab:
    """Builds the tab inside the current `gr.Blocks` and wires it to the engine.

    Args:
        engine: what decodes.
        i18n: the page's words as gradio resolves them by the browser's language.
        labelled: collects what a language switch has to relabel.
        language: the component that holds the reader's language.
    """

    def __init__(
        self, engine: Engine, i18n: gr.I18n, labelled: Labelled, language: gr.components.Component
    ) -> None:
        self.engine, self.language = engine, language
        self.audience = Audience()
        self._t, self._labelled = i18n, labelled
        self.inputs: dict[str, Any] = {}
        with gr.Row(elem_id="decode"):
            with gr.Column(elem_id="controls", min_width=280):
                with gr.Column(elem_id="ask", min_width=280):
                    self._ask()
                with (
                    gr.Column(elem_id="knobs", min_width=280),
                    # Folded on a phone; a wide page shows what is in it, not that it could fold.
                    self._word(gr.Accordion, label_="controls.settings", open=True, elem_id="fold"),
                ):
                    self._knobs()
            with gr.Column(elem_id="view", min_width=280):
                self.stage = stage(engine, ["strategy", *KNOBS], list(PACES))
        self._wire()

    # what it looks like

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

    # what it does

    def _wire(self) -> None:
        quiet = {"show_progress": "hidden", "api_visibility": "private"}
        # The newest press counts: gradio would drop it while an earlier one is still under way.
        runs = {"trigger_mode": "multiple", "concurrency_limit": None, **quiet}
        values = list(self.inputs.values())
        started = self.generate.click(
            self._generate,
            [self.language, *values],
            self.stage,
            js="(...values) => { window.playground?.starting(); return values; }",
            **runs,
        )
        branched = self.stage.branch(self._branch, [self.language, *values], self.stage, **runs)
        for event in (started, branched):  # whatever became of it
            event.then(None, None, None, js="() => { window.playground?.settled(); }")
        knobs = [self.inputs["strategy"], *(self.inputs[name] for name in KNOBS)]
        self.stage.seed(
            lambda event: str(event._data.get("seed", "")),
            None,
            self.inputs["seed"],
            queue=False,
            **quiet,
        )
        self.stage.settings(self._set_knobs, None, knobs, queue=False, **quiet)
        gr.on(
            [knob.change for knob in knobs],
            None,
            knobs,
            None,
            js="(...values) => { window.playground?.knobs(values); }",
        )
        self.inputs["pace"].change(
            None, self.inputs["pace"], None, js="(pace) => { window.playground?.pace(pace); }"
        )
        self.examples.click(
            lambda sample: sample[0], self.examples, self.inputs["prompt"], queue=False, **quiet
        )
        for button, name in (
            (self.stop, "stop"),
            (self.pause, "pause"),
            (self.step, "step"),
            (self.go_on, "goOn"),
            (self.reset, "reset"),
        ):
            button.click(None, None, None, js=f"() => {{ window.playground?.{name}(); }}")

    def _values(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.inputs, values, strict=True))

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
        if asked.get("handle") is None:
            given["max_new_tokens"] = asked.get("more", given["max_new_tokens"])
            yield from self._followed(
                lambda: self.engine.stream(settings.request(given)), language, given, request
            )
            return

        def start():
            parent = self.engine.run(asked["handle"])
            more = asked.get("more")
            run = parent.branch(
                asked.get("at"),
                token_id=asked.get("token_id"),
                strategy=settings.strategy(given),
                more=given["max_new_tokens"] if more is None else more,
            )
            parent.cancel()  # only now: what is refused changes nothing
            return run

        yield from self._followed(start, language, given, request, asked["handle"])

    def _followed(
        self,
        start: Callable[[], Any],
        language: str,
        given: dict[str, Any],
        request: gr.Request,
        parent: str | None = None,
    ) -> Iterator[str]:
        """Start a run and send what it reports until it ends or the page goes."""
        session = request.session_hash or ""
        try:
            pace = _tokens_per_s(given.get("pace"))
            run = start()
            run.pace(pace)
        except Exception as error:
            if not isinstance(error, EXPECTED):
                log.exception("a run could not be started")
            yield streaming.encoded({"error": {"text": words.complaint(language, error)}})
            return
        self.audience.watch(session, run)
        try:
            for message in streaming.follow(self.engine, run, parent):
                yield streaming.encoded(message)
        finally:
            self.audience.done(session, run)

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


def spoken(engine: Engine) -> tuple[str, ...]:
    """The languages that the model was trained on, as far as the catalogue knows."""
    return engine.info.languages if engine.info else ()


def examples(engine: Engine, language: str) -> list[list[str]]:
    """Example prompts that the model can go on with; the first is what the page opens with."""
    turkish = {"tr", "mul"} & set(spoken(engine))
    texts = words.flat(words.language(language))
    keys = [key for key in texts if key.startswith("examples.")]
    return [[texts[key]] for key in keys if turkish or "turkish" not in key]


def foreign(engine: Engine, language: str) -> str | None:
    """A word of warning to a reader whose language the model was not trained on."""
    known = spoken(engine)
    if not known or language in known or "mul" in known:
        return None
    return words.say(language, "controls.one_language", languages=words.languages(language, known))
