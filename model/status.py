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
        running, waiting: how many runs.
        cache_bytes: of the caches of running runs.
        kept_bytes: of those kept for runs to come.
        trace_bytes: of the recorded logits.
        tokens_per_s: new tokens of all runs together, over the last five seconds.
    """

    model: str
    device: str
    precision: str
    running: int
    waiting: int
    cache_bytes: int
    kept_bytes: int
    trace_bytes: int
    tokens_per_s: float

    @classmethod
    def of(cls, engine: Engine) -> Status:
        """The status now; to be asked from any thread."""
        scheduler, loop = engine.loop.scheduler, engine.loop
        decodings = [entry.decoding for entry in list(scheduler.running) if entry.decoding]
        # Read once: the loop may take a row's slot away meanwhile.
        slots = [slot for d in decodings for row in d.rows if (slot := row.slot) is not None]
        return cls(
            model=engine.name,
            device=str(engine.device),
            precision=engine.precision,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            cache_bytes=sum(slot.nbytes for slot in slots),
            kept_bytes=loop.kept.nbytes,
            trace_bytes=engine.trace.nbytes,
            tokens_per_s=loop.timeline.rate(time.perf_counter()),
        )
