"""The status: what an engine is doing at this moment."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine


@dataclass(frozen=True)
class Status:
    """Bytes are of KV caches, as buffers in memory, and of traces.

    Attributes:
        exact: whether a text is the same to the last bit whoever else is served; else but for
            rounding, so that a near-tie may fall the other way.
        running, waiting: how many runs.
        cache_bytes: of the cache that running runs share.
        cache_budget: what that and what is kept may take together.
        kept_bytes: of those kept for runs to come.
        trace_bytes: of the recorded logits.
        tokens_per_s: new tokens of all runs together, over the last five seconds.
        restarts: how often decoding had stopped and was started again.
    """

    model: str
    device: str
    precision: str
    exact: bool
    running: int
    waiting: int
    cache_bytes: int
    cache_budget: int
    kept_bytes: int
    trace_bytes: int
    tokens_per_s: float
    restarts: int

    @classmethod
    def of(cls, engine: Engine) -> Status:
        """The status now; to be asked from any thread."""
        scheduler, loop = engine.loop.scheduler, engine.loop
        return cls(
            model=engine.name,
            device=str(engine.device),
            precision=engine.precision,
            exact=engine.backbone.alone,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.parked),
            cache_bytes=engine.backbone.slots.used,
            cache_budget=scheduler.cache_bytes,
            kept_bytes=loop.kept.nbytes,
            trace_bytes=engine.trace.nbytes,
            tokens_per_s=loop.timeline.rate(time.perf_counter()),
            restarts=loop.restarts,
        )
