"""The memory of the app while it is used: sampled, and how fast it grows."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from gradio_client import Client

MIB = 2**20
ACCOUNTED = ("cache_bytes", "kept_bytes", "trace_bytes")  # bounded, and told by /status


@dataclass(frozen=True)
class Sample:
    """One moment.

    Attributes:
        at: seconds since the first one.
        rss: MiB of the app's processes.
        accounted: MiB that `/status` says are in caches and traces; these may fill up to their
            bounds, however long that takes.
        running, waiting: how many texts.
        tokens_per_s: of all together.
    """

    at: float
    rss: float
    accounted: float
    running: int
    waiting: int
    tokens_per_s: float

    @property
    def rest(self) -> float:
        """MiB that nobody accounts for: what must not grow."""
        return self.rss - self.accounted


class Memory:
    """Samples until it is stopped.

    Args:
        pid: of the app.
        every_s: seconds between two samples.
    """

    def __init__(self, url: str, pid: int, every_s: float = 2.0) -> None:
        self.samples: list[Sample] = []
        self._url, self._process, self._every_s = url, psutil.Process(pid), every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> list[Sample]:
        self._over.set()
        self._thread.join(60)
        return self.samples

    def _watch(self) -> None:
        client = Client(self._url, verbose=False, analytics_enabled=False)
        start = time.monotonic()
        while not self._over.wait(self._every_s):
            try:
                status = client.predict(api_name="/status")
                self.samples.append(self._sample(time.monotonic() - start, status))
            except Exception:  # an app that is gone is told of by others
                continue

    def _sample(self, at: float, status: dict[str, Any]) -> Sample:
        return Sample(
            at=at,
            rss=resident(self._process) / MIB,
            accounted=sum(status[name] for name in ACCOUNTED) / MIB,
            running=status["running"],
            waiting=status["waiting"],
            tokens_per_s=status["tokens_per_s"],
        )


def resident(process: psutil.Process) -> int:
    """Bytes of a process and of all that it started."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def second_half(samples: Sequence[Sample]) -> list[Sample]:
    """What came after the warm-up."""
    middle = (samples[0].at + samples[-1].at) / 2 if samples else 0.0
    return [sample for sample in samples if sample.at >= middle]


def growth(times: Sequence[float], values: Sequence[float]) -> float:
    """Slope of the line through these points, per minute of `times` in seconds."""
    if len(values) < 3:
        return 0.0
    return 60 * statistics.linear_regression(times, values).slope
