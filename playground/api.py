"""The endpoints for programs: `/generate`, `/next_token`, `/tokenize`, `/status`.

Every argument is checked by the engine; what is wrong comes back as an error with one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import gradio as gr

from model import Engine, Finished, Run, Started, Step, Waiting

from . import settings, words

PATIENCE = 2.0  # seconds without news after which something is said anyway


def endpoints(engine: Engine) -> None:
    """Add the endpoints to the current `gr.Blocks`."""
    options = {"concurrency_limit": None}
    for make in (_generate, _next_token, _tokenize, _status):
        function = make(engine)
        gr.api(function, api_name=function.__name__, **options)


def _generate(engine: Engine) -> Callable[..., Iterator[dict]]:
    def generate(
        prompt: str,
        strategy: str = "sampling",
        temperature: float = 1.0,
        top_k: float = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: float = 0,
        seed: float | None = None,
        max_new_tokens: float = settings.LENGTH,
        num_candidates: float = 20,
        stop: list[str] | None = None,
        chat: bool = False,
        system: str | None = None,
        language: str = "en",
    ) -> Iterator[dict]:
        """Continue a text and stream every decision.

        Args:
            prompt: the text; empty starts from the model's start token.
            strategy: "sampling" or "greedy".
            temperature: 0 to 100; 0 is greedy, 1 the model's own distribution.
            top_k: keep the k likeliest tokens; 0 is off.
            top_p: keep the smallest set of tokens that reaches this probability; 1 is off.
            min_p: keep tokens with at least this part of the likeliest one's probability; 0 is off.
            typical_p: keep the most typical tokens that reach this probability; 1 is off.
            repetition_penalty: above 1 makes tokens of the text so far less likely; 1 is off.
            no_repeat_ngram_size: no sequence of so many tokens twice; 0 is off.
            seed: whole number; the same seed gives the same text. None: one is picked and told.
            max_new_tokens: limit of new tokens.
            num_candidates: tokens reported per step.
            stop: strings that end the text.
            chat: use the model's chat template.
            system: the chat's system message.
            language: of error messages, "en" or "tr".

        Returns:
            One message per event, each with "event": first "started" (prompt_ids, prompt_labels,
            model, seed, …), "waiting" (place) while it waits for its turn, then one "step" per
            token (index, token_id, text, raw_prob, final_prob, rank, entropy, kept, draw,
            candidates, …), at last "finished" (reason, text, prefill_s, decode_s, tokens_per_s,
            cache_bytes).
        """
        given = locals()
        with _Told(language):
            run = engine.stream(settings.request(given))
        try:
            yield from _events(run)
        finally:
            run.cancel()

    return generate


def _events(run: Run) -> Iterator[dict]:
    """What a run reports, as plain data, until it ends.

    Where there is no news its place in the queue is told again (0: it has left that, and its prompt
    is being read), since only so a caller who has gone is noticed.
    """
    seen = place = 0
    while True:
        events = run.wait(seen, timeout=PATIENCE)
        seen += len(events)
        if not events:
            yield {"event": "waiting", "place": place}
        for event in events:
            place = event.place if isinstance(event, Waiting) else 0
            if isinstance(event, (Started, Waiting, Step, Finished)):
                yield {"event": type(event).__name__.lower(), **_plain(event)}
            if isinstance(event, Finished):
                return


def _next_token(engine: Engine) -> Callable[..., dict]:
    def next_token(
        text: str,
        strategy: str = "sampling",
        temperature: float = 1.0,
        top_k: float = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: float = 0,
        seed: float | None = None,
        num_candidates: float = 20,
        chat: bool = False,
        system: str | None = None,
        language: str = "en",
    ) -> dict:
        """The distribution of the token after a text, and which one the settings choose.

        Args: as for `/generate`.

        Returns:
            The fields of one step; `candidates` holds the likeliest tokens with `raw_prob`,
            `final_prob` and `cut_by`, the name of the setting that removed it.
        """
        given = {**locals(), "prompt": text, "max_new_tokens": 1}
        with _Told(language):
            result = engine.generate(settings.request(given))
            (step,) = (event for event in result.events if isinstance(event, Step))
            return _plain(step)

    return next_token


def _tokenize(engine: Engine) -> Callable[..., list[dict]]:
    def tokenize(
        text: str, chat: bool = False, system: str | None = None, language: str = "en"
    ) -> list[dict]:
        """The exact tokens that the model gets for a text, special ones included.

        Args: as for `/generate`.

        Returns:
            One entry per token: token_id, label (white space visible), text, special.
        """
        with _Told(language):
            given = {"prompt": text, "chat": chat, "system": system}
            ids = engine.tokenize(settings.request(given))
            show = engine.token_text
            return [
                {
                    "token_id": i,
                    "label": show.label(i),
                    "text": piece,
                    "special": show.is_special(i),
                }
                for i, piece in zip(ids, show.pieces(ids), strict=True)
            ]

    return tokenize


def _status(engine: Engine) -> Callable[..., dict]:
    def status() -> dict:
        """What the engine is doing now.

        Returns:
            model, device, precision; whether texts are the same to the last bit whoever else is
            served (exact); how many texts are running and waiting; bytes of the KV
            cache in use (cache_bytes), of what is kept of it for later (kept_bytes), of both at
            most (cache_budget) and of the recorded steps (trace_bytes); tokens a second of everyone
            together; how often decoding had stopped and was started again (restarts).
        """
        return asdict(engine.status())

    return status


class _Told:
    """Turns what goes wrong inside into one sentence for the caller."""

    def __init__(self, language: Any) -> None:
        self.language = language

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if isinstance(error, Exception):
            # gradio passes the text of its own errors on to the caller, and only of those.
            raise gr.Error(words.complaint(self.language, error), print_exception=False) from None
        return False


def _plain(event: Started | Waiting | Step | Finished) -> dict[str, Any]:
    """Its fields. What a fault says of itself is for the log: it may name paths."""
    plain = asdict(event)
    return {**plain, "message": ""} if isinstance(event, Finished) else plain
