"""The scheduler: which sequences run in the next step, and who waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .decoding import Decoding
from .errors import Busy
from .kv_cache import longest, roomy
from .run import Run

MOST_RUNNING = 64


@dataclass(eq=False)
class Entry:
    """One run in the engine: before it is admitted it has no decoding state."""

    run: Run
    nbytes: int  # cache that it may come to need
    forced: int | None = None  # a token that takes the place of the first choice
    place: int = 0  # last told place in the queue
    reused: int = 0  # tokens that a kept cache held
    decoding: Decoding | None = None


class Scheduler:
    """First come, first served into the running set; turns go round within it.

    Args:
        cache_bytes: what the KV caches of all running sequences may come to need together.
        max_waiting: longest queue.

    Attributes:
        aside: bytes for the question that is being answered.
    """

    def __init__(self, cache_bytes: int, bytes_per_token: int, max_waiting: int) -> None:
        self.cache_bytes, self.max_waiting = cache_bytes, max_waiting
        self._bytes_per_token = bytes_per_token
        self.aside = 0
        self.running: deque[Entry] = deque()
        self.waiting: deque[Entry] = deque()
        self._adding = threading.Lock()

    @property
    def reserved(self) -> int:
        """Bytes promised to running sequences and the question."""
        return sum(entry.nbytes for entry in list(self.running)) + self.aside

    @property
    def spare(self) -> int:
        """Bytes promised to nobody."""
        return max(0, self.cache_bytes - self.reserved)

    def bytes(self, tokens: int, rows: int = 1) -> int:
        """What a sequence of so many tokens may need."""
        return rows * roomy(tokens) * self._bytes_per_token

    def longest(self, rows: int = 1) -> int:
        """Tokens that a sequence can have when it is alone."""
        return longest(self.cache_bytes // self._bytes_per_token // rows)

    def add(self, run: Run, tokens: int, forced: int | None, seconds: Callable[[], float]) -> None:
        """Queue a run that will have up to `tokens` tokens.

        Raises:
            Busy: the queue is full; `seconds` says when to try again.
        """
        entry = Entry(run, self.bytes(tokens, run.request.strategy.rows), forced)
        with self._adding:  # counted and added at once, so that the queue is never longer
            full = len(self.waiting) >= self.max_waiting
            if not full:
                self.waiting.append(entry)
        if full:
            raise Busy(seconds())

    def admit(self) -> Entry | None:
        """The next run that there is room for, moved to the running set."""
        if not self.waiting or len(self.running) >= MOST_RUNNING:
            return None
        entry = self.waiting[0]
        if self.reserved and self.reserved + entry.nbytes > self.cache_bytes:
            return None
        self.running.append(self.waiting.popleft())
        return entry

    def next(self, now: float) -> list[Entry]:
        """The running sequences whose turn it is, of those that are neither paused nor paced.

        Today at most one, since the backbone runs rows one after the other.
        """
        for _ in range(len(self.running)):
            entry = self.running[0]
            self.running.rotate(-1)
            if entry.run.due(now) == 0:
                return [entry]
            entry.decoding.clock.held = True
        return []

    def until_due(self, now: float) -> float:
        """Seconds until some running sequence may go on; infinite if none ever will by itself."""
        running = list(self.running)  # a copy: the loop may change it while another thread asks
        return min((entry.run.due(now) for entry in running), default=float("inf"))

    def forked(self) -> None:
        """In a forked process nobody holds the lock."""
        self._adding = threading.Lock()

    def all(self) -> list[Entry]:
        return [*self.running, *self.waiting]

    def cancelled(self) -> list[Entry]:
        return [entry for entry in self.all() if entry.run.cancelled]

    def remove(self, entry: Entry) -> None:
        for queue in (self.running, self.waiting):
            if entry in queue:
                queue.remove(entry)
