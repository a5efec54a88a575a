"""The scheduler: which sequences run in the next step, and who waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from . import kv_cache
from .decoding import Decoding
from .errors import Busy
from .run import Run

MOST_RUNNING = 64  # rows of a pass


@dataclass(eq=False)
class Entry:
    """One run in the engine: before it is admitted it has no decoding state.

    Attributes:
        tokens: that each of its rows may come to have.
        nbytes: cache that it may come to need.
        forced: a token that takes the place of the first choice.
        place: last told place in the queue.
        reused: tokens that a kept cache held.
        allowance: about how many tokens of it the next pass may take.
    """

    run: Run
    tokens: int
    nbytes: int
    forced: int | None = None
    place: int = 0
    reused: int = 0
    allowance: int = 0
    decoding: Decoding | None = None

    @property
    def rows(self) -> int:
        return self.run.request.strategy.rows

    @property
    def heavy(self) -> bool:
        """Whether what it has to run is more than its newest tokens."""
        return not self.decoding.prefilled or self.decoding.pending > kv_cache.CHUNK


class Scheduler:
    """First come, first served into the running set; there, everyone takes part in every step.

    Prompts share what a step has room for beside the newest tokens of all others, in turn.

    Args:
        cache_bytes: what the KV caches of all running sequences may come to need together.
        max_waiting: longest queue.
        pass_tokens: about how many tokens of prompts a step takes, twice as many where nobody else
            would wait for them.

    Attributes:
        aside: bytes for the question that is being answered.
        parked: paused runs that had to make room.
    """

    def __init__(
        self, cache_bytes: int, bytes_per_token: int, max_waiting: int, pass_tokens: int
    ) -> None:
        self.cache_bytes, self.max_waiting = cache_bytes, max_waiting
        self._bytes_per_token, self._pass_tokens = bytes_per_token, pass_tokens
        self.aside = 0
        self.running: deque[Entry] = deque()
        self.waiting: deque[Entry] = deque()
        self.parked: list[Entry] = []
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
        return rows * kv_cache.capacity(tokens) * self._bytes_per_token

    def longest(self, rows: int = 1) -> int:
        """Tokens that a sequence can have when it is alone."""
        return kv_cache.longest(self.cache_bytes // self._bytes_per_token // rows)

    def add(self, run: Run, tokens: int, forced: int | None, seconds: Callable[[], float]) -> None:
        """Queue a run that will have up to `tokens` tokens.

        Raises:
            Busy: the queue is full; `seconds` says when to try again.
        """
        entry = Entry(run, tokens, self.bytes(tokens, run.request.strategy.rows), forced)
        with self._adding:  # counted and added at once, so that the queue is never longer
            full = len(self.waiting) >= self.max_waiting
            if not full:
                self.waiting.append(entry)
        if full:
            raise Busy(seconds())

    def admit(self) -> Entry | None:
        """The next run that there is room for, moved to the running set."""
        if not self.waiting or not self._fits(self.waiting[0]):
            return None
        entry = self.waiting.popleft()
        self.running.append(entry)
        return entry

    def _fits(self, entry: Entry) -> bool:
        if not self.running and not self.aside:
            return True
        rows = sum(other.rows for other in self.running) + entry.rows
        return rows <= MOST_RUNNING and self.reserved + entry.nbytes <= self.cache_bytes

    def idle(self, now: float) -> Entry | None:
        """A paused run in whose place the first in the queue could run."""
        if not self.waiting or self._fits(self.waiting[0]):
            return None
        held = (e for e in self.running if e.decoding and e.run.due(now) == float("inf"))
        return next(held, None)

    def park(self, entry: Entry) -> None:
        """Its place is free for others; it comes back when it is resumed."""
        self.running.remove(entry)
        self.parked.append(entry)

    def put_back(self, entry: Entry) -> None:
        """From the running set to the head of the queue: it goes on when there is room."""
        self.running.remove(entry)
        self.waiting.appendleft(entry)

    def unpark(self, now: float) -> None:
        """Who was resumed waits before all others, the longest parked first."""
        for entry in [e for e in reversed(self.parked) if e.run.due(now) < float("inf")]:
            self.parked.remove(entry)
            self.waiting.appendleft(entry)

    def next(self, now: float) -> list[Entry]:
        """Who takes part in the next step, of those that are neither paused nor paced."""
        taking, heavy = [], []
        for entry in self.running:
            if entry.run.due(now) > 0:
                entry.decoding.clock.held = True
            elif entry.heavy:
                heavy.append(entry)
            else:
                entry.allowance = entry.decoding.pending
                taking.append(entry)
        left = self._pass_tokens if taking else 2 * self._pass_tokens
        while heavy and left > 0:
            entry = heavy.pop(0)
            entry.allowance = max(left // (len(heavy) + 1), kv_cache.CHUNK)
            left -= min(entry.allowance, entry.decoding.pending)
            taking.append(entry)
            self.running.remove(entry)  # the next step begins with those that had none now
            self.running.append(entry)
        return taking

    def until_due(self, now: float) -> float:
        """Seconds until some running sequence may go on; infinite if none ever will by itself."""
        running = list(self.running)  # a copy: the loop may change it while another thread asks
        return min((entry.run.due(now) for entry in running), default=float("inf"))

    def forked(self) -> None:
        """In a forked process nobody holds the lock."""
        self._adding = threading.Lock()

    def all(self) -> list[Entry]:
        return [*self.running, *self.waiting, *self.parked]

    def cancelled(self) -> list[Entry]:
        return [entry for entry in self.all() if entry.run.cancelled]

    def remove(self, entry: Entry) -> None:
        for queue in (self.running, self.waiting, self.parked):
            if entry in queue:
                queue.remove(entry)
