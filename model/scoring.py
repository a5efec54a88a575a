"""Scoring: how the model saw a text that somebody else wrote."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .backbone import Backbone, Feed
from .decoding import step_of
from .events import Step
from .kv_cache import CHUNK
from .questions import Question
from .request import Request
from .token_text import TokenText


def scored(
    backbone: Backbone, text: TokenText, token_ids: Sequence[int], request: Request
) -> Question[list[Step]]:
    """One `Step` for each token but the first, by passes over `CHUNK` tokens at a time.

    Args:
        request: its strategy says what it would have chosen, and it how many candidates to report.
    """
    steps, pieces = [], text.pieces(token_ids)
    slot = backbone.slots.take(len(token_ids), len(token_ids))
    try:
        for start in range(0, len(token_ids) - 1, CHUNK):
            chunk = token_ids[start : min(start + CHUNK, len(token_ids) - 1)]
            began = time.perf_counter()
            (output,) = backbone.forward([Feed(chunk, slot, logits=len(chunk))])
            each = (time.perf_counter() - began) / len(chunk)
            for index, logits in enumerate(output.logits, start):
                steps.append(
                    step_of(
                        request.strategy.choose(logits, token_ids[: index + 1]),
                        text,
                        index=index,
                        token_id=token_ids[index + 1],
                        piece=pieces[index + 1],
                        num_candidates=request.num_candidates,
                        forced=True,
                        duration_s=each,
                    )
                )
            yield
    finally:
        slot.release()
    return steps
