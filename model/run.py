"""A run: one request being decoded, as its owner sees it."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import ranges
from .decoding import step_of
from .draw import new_seed, uniform
from .errors import FieldError, Gone
from .events import Event, Finished, Step
from .request import MOST_NEW_TOKENS, Request, checked_strategy
from .strategies import Choice, Strategy
from .trace import Moment

if TYPE_CHECKING:
    from .engine import Engine

MOST_DRAWS = 100_000
LOOK = 0.05  # seconds after which an engine without a thread looks for resumed runs
SLOWEST, FASTEST = 0.001, 10_000  # tokens a second


@dataclass(frozen=True)
class Result:
    """A drained run. `token_ids` are the new tokens, the end token included."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    events: tuple[Event, ...]


class Run:
    """A stream of events, and everything that can be asked of its steps afterwards.

    Iterating yields every event from the first; several readers may iterate at once. Closing an
    iterator before the end cancels the run.

    Attributes:
        handle: names the run to its engine; unguessable.
        prompt_ids: the exact tokens sent.
        seed: of its draws. Also a run that draws nothing has one, so that other settings, tried on
            a step or written on with in a branch, draw the same number there.
        parent: handle of the run that this one branched from, if any.
        steps: one `Step` per new token so far, inherited ones first.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        prompt_ids: tuple[int, ...],
        seed: int,
        parent: str | None = None,
    ) -> None:
        self.handle = secrets.token_urlsafe(12)
        self.engine, self.request, self.prompt_ids = engine, request, prompt_ids
        self.seed, self.parent = seed, parent
        self.steps: list[Step] = []
        self.moments: list[Moment] = []
        self.finished: Finished | None = None
        self.cancelled = self.paused = False
        self._interval = 0.0  # seconds between two steps, for the pace
        self._last = 0.0  # when the latest was due; 0 before the first at this pace
        self._decisions = self._until = 0  # taken so far, and how many a paused run may come to
        self._events: list[Event] = []
        self._news = threading.Condition()
        self._acts: deque[Callable[[], None]] = deque()

    # what the owner does

    def __iter__(self) -> Iterator[Event]:
        seen = 0
        try:
            while True:
                self.wait(seen)
                for event in self._events[seen:]:
                    seen += 1
                    yield event
                    if isinstance(event, Finished):
                        return
        finally:
            self.cancel()

    def wait(self, seen: int, timeout: float | None = None) -> list[Event]:
        """Block until there are more than `seen` events; returns those behind `seen`.

        Args:
            seen: how many events the caller has.
            timeout: seconds, after which the answer may be empty; None waits as long as it takes.
        """
        if not self.engine.threaded:
            self._drive(seen, timeout)
        with self._news:
            self._news.wait_for(lambda: self._has_news(seen), timeout)
            return self._events[seen:]

    def _has_news(self, seen: int) -> bool:
        return len(self._events) > seen or self.finished is not None

    def _drive(self, seen: int, timeout: float | None) -> None:
        """Turn the loop, which has no thread of its own, until there is news."""
        end = float("inf") if timeout is None else time.perf_counter() + timeout
        while not self._has_news(seen) and (now := time.perf_counter()) < end:
            if not self.engine.step():  # all paced or paused; another thread may resume them
                due = self.engine.loop.scheduler.until_due(now)
                with self._news:
                    self._news.wait_for(lambda: self._has_news(seen), min(LOOK, due, end - now))

    def cancel(self) -> None:
        """End the run within one step. Safe at any time, and more than once."""
        if self.finished is None:
            self.cancelled = True
            self.engine.wake()

    def pause(self, after: int = 0) -> None:
        """Take no further step until `resume`, or only so many: a paused run can be stepped on.

        The pace holds back none of these. A strategy that decides on several tokens at once takes
        them as one step.

        Args:
            after: steps still to take; of a paused run, beside those that it already may.

        Raises:
            FieldError: not a whole number from 0 on.
        """
        after = ranges.whole("after", after, 0, MOST_NEW_TOKENS)
        allowed = self._until if self.paused and after else 0
        self._until = max(allowed, self._decisions) + after
        self.paused = True
        if after:
            self.engine.wake()

    def resume(self) -> None:
        self.paused = False
        self._last = 0.0
        self.engine.wake()

    def pace(self, tokens_per_s: float | None) -> None:
        """At most this many tokens a second from now on; None is as fast as it goes."""
        if tokens_per_s is None:
            self._interval = 0.0
        else:
            self._interval = 1 / ranges.number("pace", tokens_per_s, SLOWEST, FASTEST)
        self._last = 0.0
        self.engine.wake()

    def result(self) -> Result:
        """Wait for the end.

        Raises:
            RuntimeError: the run ended in an error.
        """
        events = tuple(self)
        last = events[-1]
        if last.reason == "error":
            raise RuntimeError(last.message)
        ids = tuple(step.token_id for step in self.steps)
        return Result(last.text, ids, last.reason, events)

    # what can be asked of a step

    def reweigh(
        self, index: int, strategy: Strategy | None = None, num_candidates: int = 20
    ) -> Step:
        """Step `index` under other settings, exactly, without a model run.

        The text stays: `token_id` is the run's token, `choice` the one that these settings would
        pick: with the run's seed, unless they bring their own, as a branch would. (A step whose
        logits were given up costs one pass.)

        Raises:
            Gone: there is no such step.
            FieldError: a value outside its range.
        """
        count = ranges.whole("num_candidates", num_candidates, 1, 10_000_000)
        step = self.step(index)
        choice = self._choice(index, strategy)
        return step_of(
            choice,
            self.engine.token_text,
            index=index,
            token_id=step.token_id,
            piece=step.text,
            num_candidates=count,
            forced=step.forced,
            duration_s=step.duration_s,
        )

    def redraw(self, index: int, times: int, strategy: Strategy | None = None) -> Counter[int]:
        """Draw step `index` again with fresh numbers: how often each token came."""
        times = ranges.whole("times", times, 1, MOST_DRAWS)
        choice = self._choice(index, strategy)
        if choice.draw is None:
            return Counter({choice.token_id: times})
        seed, position = new_seed(), len(self.prompt_ids) + index
        draws = (uniform(seed, position, trial) for trial in range(times))
        return Counter(choice.distribution.at(u)[0] for u in draws)

    def fork(self, index: int, token_id: int, more: int | None = None) -> Run:
        """A new run: the text up to step `index`, then this token, then on."""
        return self.branch(index, token_id=token_id, more=more)

    def branch(
        self,
        at: int | None = None,
        *,
        token_id: int | None = None,
        strategy: Strategy | None = None,
        more: int | None = None,
    ) -> Run:
        """A new run that takes over the steps before `at` and decodes on from there.

        Args:
            at: 0 to the number of steps; None takes over all of them, which continues the run.
            token_id: forced at that place; None lets the strategy choose.
            strategy: other settings from there on; without a seed, that of this run goes on.
            more: how many tokens it may add to those taken over; None goes on to the request's
                limit, or as many as that again where it is already reached.

        Raises:
            Gone: there is no such place.
            FieldError: a value outside its range.
            Busy: the queue is full.
        """
        at = len(self.steps) if at is None else at
        most = len(self.steps)
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= most:
            raise Gone("step", at)
        return self.engine.branch(self, at, token_id, strategy, more)

    def step(self, index: int) -> Step:
        if isinstance(index, bool) or not isinstance(index, int):
            raise FieldError("index", index, f"0 to {len(self.steps) - 1}", "index")
        if not 0 <= index < len(self.steps):
            raise Gone("step", index)
        return self.steps[index]

    def _choice(self, index: int, strategy: Strategy | None) -> Choice:
        self.step(index)
        own = self.moments[index].strategy
        strategy = own if strategy is None else checked_strategy(strategy).with_seed(self.seed)
        return strategy.choose(self.engine.logits(self, index), self.context(index))

    def context(self, index: int) -> list[int]:
        """The tokens before step `index`."""
        return [*self.prompt_ids, *(step.token_id for step in self.steps[:index])]

    # what the engine does

    def forked(self) -> None:
        """In a forked process nobody else waits for this run."""
        self._news = threading.Condition()
        self._acts.clear()

    def tell(self, event: Event) -> None:
        with self._news:
            self._events.append(event)
            if isinstance(event, Finished):
                self.finished = event
            self._news.notify_all()
        if self.finished is not None:
            self._call_back()

    def then(self, act: Callable[[], None]) -> None:
        """Call `act` when the run is over; at once where it is."""
        self._acts.append(act)
        if self.finished is not None:
            self._call_back()

    def _call_back(self) -> None:
        while self._acts:
            try:
                act = self._acts.popleft()
            except IndexError:  # another thread called it
                return
            act()

    def due(self, now: float) -> float:
        """Seconds until the next step may be taken; infinite while paused."""
        if self.paused:
            return 0.0 if self._decisions < self._until else float("inf")
        return max(0.0, self._last + self._interval - now)

    def stepped(self) -> None:
        """A decision was taken."""
        self._decisions += 1
        # Counted from when it was due, so that the pace holds whatever a step takes; at most one
        # is made up for. The pace may change meanwhile: when the next is due is seen by the new.
        now = time.perf_counter()
        due = self._last + self._interval if self._last else now
        self._last = min(max(due, now - self._interval), now)
