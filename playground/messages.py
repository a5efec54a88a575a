"""What goes over the wire: events as small, plain data for the page's scripts."""

from __future__ import annotations

from typing import Any

from model import Engine, Finished, Run, Started, Step

from . import settings

MS = 1000


def step(engine: Engine, step: Step) -> dict[str, Any]:
    """One decision. Candidates are lists, since twenty of them travel with every token."""
    special = engine.token_text.is_special
    return {
        "index": step.index,
        "id": step.token_id,
        "text": step.text,
        "label": step.label,
        "special": special(step.token_id),
        "raw": step.raw_prob,
        "final": step.final_prob,
        "rank": step.rank,
        "entropy": step.entropy,
        "final_entropy": step.final_entropy,
        "kept": step.kept,
        "kept_prob": step.kept_prob,
        "effects": [
            [e.processor, e.cut, e.cut_prob, e.changed, e.top_before, e.top_after]
            for e in step.effects
        ],
        "draw": step.draw,
        "span": step.span,
        "choice": step.choice,
        "forced": step.forced,
        "ms": step.duration_s * MS,
        "candidates": [
            [c.token_id, c.label, c.logit, c.raw_prob, c.final_prob, c.cut_by, special(c.token_id)]
            for c in step.candidates
        ],
    }


def tokens(engine: Engine, ids: tuple[int, ...]) -> list[dict[str, Any]]:
    """The tokens of a prompt."""
    text = engine.token_text
    return [
        {"id": i, "label": text.label(i), "text": piece, "special": text.is_special(i)}
        for i, piece in zip(ids, text.pieces(ids), strict=True)
    ]


def started(engine: Engine, event: Started) -> dict[str, Any]:
    return {
        "handle": event.handle,
        "prompt": tokens(engine, event.prompt_ids),
        "inherited": event.inherited,
        "model": event.model,
        "device": event.device,
        "precision": event.precision,
        "seed": event.seed,
        "max_new_tokens": event.max_new_tokens,
        "vocab_size": event.vocab_size,
    }


def finished(event: Finished) -> dict[str, Any]:
    return {
        "reason": event.reason,
        # The text of a fault is for the log; a reader gets a sentence of their own language.
        "text": event.text,
        "prefill_ms": event.prefill_s * MS,
        "decode_ms": event.decode_s * MS,
        "tokens_per_s": event.tokens_per_s,
        "cache_bytes": event.cache_bytes,
        "reused": event.reused,
    }


def beginning(engine: Engine, run: Run, event: Started) -> dict[str, Any]:
    """What the first message about a run tells of it."""
    told = {
        "started": started(engine, event),
        "settings": settings.shown(run.request.strategy),
    }
    if event.parent is not None:
        told["branch"] = {"parent": event.parent, "at": event.inherited}
    return told


def whole_run(engine: Engine, run: Run, start: int = 0) -> dict[str, Any]:
    """Everything about a run from step `start` on, for a page that missed it."""
    events = run.wait(0, timeout=0)
    message = {
        "run": run.handle,
        **beginning(engine, run, events[0]),
        "from": start,
        "steps": [step(engine, s) for s in run.steps[start:]],
    }
    if run.finished is not None:
        message["finished"] = finished(run.finished)
    return message
