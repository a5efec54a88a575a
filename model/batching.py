"""Batching: one workload through the engine, in static batches or continuously, and measured.

Both ways run on the same engine. They differ in one rule alone: when a slot that has become free
takes the next request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from .errors import Busy
from .events import Waiting
from .run import Run
from .timeline import Turn
from .workload import Arrival, Workload

if TYPE_CHECKING:
    from .engine import Engine

WAYS = ("static", "continuous")
LOOK = 0.1  # seconds between two looks at the timeline
PATIENCE = 0.05  # seconds to the next try where others fill the queue
LAST_TURN = 2.0  # seconds in which the timeline must have caught up with the last run's end


@dataclass(eq=False)
class Passage:
    """How one request fares. Times are seconds since the round began, None until then.

    Attributes:
        slot: where it is served, from 0; None while it waits.
        started_s: when it was given to the engine.
        steps: when each of its tokens was there, the first (which ends the prefill) included.
        ended_s: when it left its slot.
        held_s: how long it then waited for room in the engine, beside its slot.
        reused: prompt tokens that the engine still had from earlier runs.
    """

    arrival: Arrival
    slot: int | None = None
    started_s: float | None = None
    steps: list[float] = field(default_factory=list)
    ended_s: float | None = None
    held_s: float = 0.0
    reused: int = 0
    run: Run | None = field(default=None, repr=False)
    _refused: bool = False  # by a full queue, and to be tried again
    _queued: bool = False  # there was no room in the engine at once
    _begun_s: float | None = None  # start of its first turn
    _prompt_s: float | None = None  # end of the latest turn that read a part of its prompt

    @property
    def first_s(self) -> float | None:
        """When its first token was there."""
        return self.steps[0] if self.steps else None

    @property
    def running(self) -> bool:
        return self.run is not None and self.ended_s is None

    def took_part(self, start_s: float, end_s: float, prefilling: bool) -> None:
        """In a turn of the engine, which gave it a token unless its prompt goes on."""
        if self._begun_s is None:
            self._begun_s = start_s
        if prefilling:
            self._prompt_s = end_s
            return
        self._read()
        self.steps.append(end_s)

    def settle(self) -> bool:
        """Set straight what only the end can tell; False while its last turn is missing."""
        self._read()
        if len(self.steps) < self.arrival.tokens:
            return False
        # A run ends within its last turn, so the turn's end is a moment later.
        self.steps = [min(step, self.ended_s) for step in self.steps]
        events = self.run.wait(0, timeout=0)
        if self._queued or any(isinstance(event, Waiting) for event in events):
            self.held_s = max(0.0, self._begun_s - self.started_s)
        self.reused = self.run.finished.reused
        return True

    def _read(self) -> None:
        """The prompt is read: the last turn that ran a part of it gave a token, too."""
        if self._prompt_s is not None:
            self.steps.append(self._prompt_s)
            self._prompt_s = None


@dataclass(frozen=True)
class Measures:
    """What a whole round came to.

    Attributes:
        tokens: new ones of all requests.
        total_s: from the first arrival to the last token.
        tokens_per_s: new tokens over that time.
        mean_wait_s, worst_wait_s: from a request's arrival to its first token.
        slot_use: part of the slots' time, up to the last token, in which a request was in them.
        others_share: part of the time in which runs that aren't this round's took part in turns.
        held_s: how long requests together waited for room in the engine beside their slot.
        reused: prompt tokens that the engine still had from earlier runs.
    """

    tokens: int
    total_s: float
    tokens_per_s: float
    mean_wait_s: float
    worst_wait_s: float
    slot_use: float
    others_share: float
    held_s: float
    reused: int

    @classmethod
    def of(
        cls, passages: Sequence[Passage], slots: int, others: Sequence[tuple[float, float]]
    ) -> Measures:
        """Of a round in which every request ended, and the turns in which others took part."""
        total = max(passage.ended_s for passage in passages)
        tokens = sum(len(passage.steps) for passage in passages)
        waits = [passage.first_s - passage.arrival.arrival_s for passage in passages]
        busy = sum(passage.ended_s - passage.started_s for passage in passages)
        foreign = sum(max(0.0, min(end, total) - max(start, 0.0)) for start, end in others)
        return cls(
            tokens=tokens,
            total_s=total,
            tokens_per_s=tokens / total,
            mean_wait_s=sum(waits) / len(waits),
            worst_wait_s=max(waits),
            slot_use=busy / (slots * total),
            others_share=min(1.0, foreign / total),
            held_s=sum(passage.held_s for passage in passages),
            reused=sum(passage.reused for passage in passages),
        )


class Round:
    """A workload that really runs, in one of two ways.

    *static*: those that have arrived fill the slots and start together; the next batch starts when
    the slowest of them has ended. *continuous*: a slot takes the next request the moment it is
    free. Either way first come, first served.

    A thread of its own waits for arrivals, so that whoever watches can't hold anything up. Where a
    run ends, the next one is started by the engine's thread, between two turns.

    Args:
        engine: one with a thread.
        way: one of `WAYS`.

    Attributes:
        passages: by arrival.
        others: start and end, in seconds since the beginning, of the turns in which runs that
            aren't this round's took part.
        measures: once every request has ended.
        error: what ended the round, if anything did.
    """

    def __init__(self, engine: Engine, workload: Workload, way: str) -> None:
        if way not in WAYS:
            raise ValueError(f"way is {way!r}; allowed is {', '.join(WAYS)}")
        self.engine, self.workload, self.way = engine, workload, way
        self.passages = [Passage(arrival) for arrival in workload.arrivals]
        self.others: list[tuple[float, float]] = []
        self.measures: Measures | None = None
        self.error: Exception | None = None
        self.cancelled = False
        self.began = 0.0  # on the clock of time.perf_counter
        self._seen = 0.0  # start of the latest turn read
        self._by_handle: dict[str, Passage] = {}
        self._starting = 0  # runs that the engine may have and `_by_handle` not yet
        self._lock = threading.RLock()
        self._wake, self._over = threading.Event(), threading.Event()

    def start(self) -> Round:
        self.began = self._seen = time.perf_counter()
        threading.Thread(target=self._drive, name=f"{self.way} round", daemon=True).start()
        return self

    @property
    def now_s(self) -> float:
        return time.perf_counter() - self.began

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the round is over, or for so many seconds; whether it is."""
        return self._over.wait(timeout)

    def cancel(self) -> None:
        """End it within one step. Safe at any time, and more than once."""
        self.cancelled = True
        self._wake.set()
        for passage in self.passages:
            if passage.run is not None:
                passage.run.cancel()

    # driving

    def _drive(self) -> None:
        try:
            while not self._ended():
                self._fill()
                self._look()
                self._wake.wait(self._pause())
                self._wake.clear()
            self._measure()
        except Exception as error:
            self._fail(error)
        self._over.set()

    def _ended(self) -> bool:
        with self._lock:
            if self._starting or any(passage.running for passage in self.passages):
                return False
            return self.cancelled or all(p.ended_s is not None for p in self.passages)

    def _pause(self) -> float:
        """Seconds to the next arrival, to the next try, or to the next look."""
        with self._lock:
            if any(passage._refused for passage in self.passages):
                return PATIENCE
            coming = [p.arrival.arrival_s for p in self.passages if p.slot is None]
        left = [moment - self.now_s for moment in coming if moment > self.now_s]
        return max(0.0, min([LOOK, *left]))

    def _fill(self) -> None:
        """Start whoever's turn it is."""
        with self._lock:
            due = [] if self.cancelled else self._due()
            self._starting += len(due)
        for passage in due:
            self._start(passage)

    def _due(self) -> list[Passage]:
        """Those whom the queue refused, and those that get a slot now."""
        again = [passage for passage in self.passages if passage._refused]
        for passage in again:
            passage._refused = False
        taken = {p.slot for p in self.passages if p.slot is not None and p.ended_s is None}
        if self.way == "static" and taken:
            return again
        free = [slot for slot in range(self.workload.slots) if slot not in taken]
        now = self.now_s
        waiting = [p for p in self.passages if p.slot is None and p.arrival.arrival_s <= now]
        for passage, slot in zip(waiting, free, strict=False):
            passage.slot, passage.started_s = slot, now
        return again + waiting[: len(free)]

    def _start(self, passage: Passage) -> None:
        run = None
        try:
            run = self.engine.stream(passage.arrival.request())
        except Busy:
            passage._refused = passage._queued = True
        except Exception as error:
            self._fail(error)
        with self._lock:
            self._starting -= 1
            if run is None:
                return
            passage.run = run
            self._by_handle[run.handle] = passage
        run.then(partial(self._left, passage))
        if self.cancelled:
            run.cancel()

    def _left(self, passage: Passage) -> None:
        """A run is over. Called in the engine's thread: nothing may be raised."""
        try:
            with self._lock:
                passage.ended_s = self.now_s
            finished = passage.run.finished
            if finished.reason != "length" and not self.cancelled:
                raise RuntimeError(
                    f"request {passage.arrival.number} ended by {finished.reason}: "
                    f"{finished.message or 'the engine gave it up'}"
                )
            self._fill()
        except Exception as error:
            self._fail(error)
        self._wake.set()

    def _fail(self, error: Exception) -> None:
        self.error = self.error or error
        self.cancel()

    # measuring

    def _look(self) -> None:
        """Read what is new in the engine's timeline."""
        with self._lock:
            if self._starting:  # a turn of theirs would be taken for somebody else's
                return
            for turn in self.engine.timeline():
                if turn.start_s > self._seen:
                    self._seen = turn.start_s
                    self._note(turn)

    def _note(self, turn: Turn) -> None:
        start, end = turn.start_s - self.began, turn.start_s + turn.duration_s - self.began
        mine = [handle for handle in turn.handles if handle in self._by_handle]
        for handle in mine:
            self._by_handle[handle].took_part(start, end, handle in turn.prefilling)
        if len(mine) < len(turn.handles):
            self.others.append((start, end))

    def _measure(self) -> None:
        """The engine notes a turn when it is over, a moment after the runs that end in it."""
        if self.cancelled:
            return
        deadline = time.perf_counter() + LAST_TURN
        missing = list(self.passages)
        while missing:
            self._look()
            missing = [passage for passage in missing if not passage.settle()]
            if missing and time.perf_counter() > deadline:
                raise RuntimeError("the engine's timeline does not hold every turn of the round")
            if missing:
                time.sleep(PATIENCE / 10)
        self.measures = Measures.of(self.passages, self.workload.slots, self.others)
