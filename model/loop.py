"""The loop: schedule, run, decide, again and again, for all runs of an engine."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TypeVar

import torch

from .backbone import Backbone, Output
from .decoding import Clock, Decoding, Row, next_feed
from .events import Finished, Waiting
from .kept import Kept
from .kv_cache import CHUNK
from .memory import Tidier
from .places import Places, no_memory
from .questions import Question, Questions
from .run import Run
from .scheduler import Entry, Scheduler
from .timeline import Timeline, Turn
from .token_text import TokenText
from .trace import Moment, Trace

T = TypeVar("T")
log = logging.getLogger(__name__)
BREATH = 0.1  # seconds after a turn that failed
PATIENCE = 3  # turns that fail one after the other until the runs in it are given up


class Loop:
    """Takes the runs of a scheduler through a backbone, one turn after the other.

    Nothing else touches the model: what other threads want from it they `ask`. An idle loop
    sleeps; it does not poll. Should its thread die, another one takes over.

    Args:
        backbone: the model.
        scheduler: who is next.
        text: the vocabulary as text.
        end_ids: tokens that end a run.
        trace: where each step's logits are kept.
        threaded: False leaves the turning to the caller of `turn`.

    Attributes:
        restarts: how often decoding had stopped and was begun anew; those who ran were told.
    """

    def __init__(
        self,
        backbone: Backbone,
        scheduler: Scheduler,
        text: TokenText,
        end_ids: frozenset[int],
        trace: Trace,
        threaded: bool,
    ) -> None:
        self.backbone, self.scheduler, self.text = backbone, scheduler, text
        self.end_ids, self.trace, self.threaded = end_ids, trace, threaded
        self.places = Places(backbone, scheduler)
        self.timeline, self._tidier = Timeline(), Tidier()
        self.closed = False
        self.restarts = self._failures = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._questions = Questions()
        self._turning, self._starting = threading.RLock(), threading.Lock()
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None

    def forked(self) -> None:
        """In a forked process: the parent's runs are its own, and so is the loop's thread.

        Locks are made anew, since who held them is not here.
        """
        self._begin_anew()
        self.scheduler.forked()
        self.places.forget()
        for entry in self.scheduler.all():
            entry.run.forked()
            self._finish(entry, "cancelled")

    @property
    def kept(self) -> Kept:
        """What runs that are over left in the KV cache."""
        return self.places.kept

    def turn(self) -> bool:
        """One turn: a step of everyone, a piece of one question. False if there was neither."""
        with self._turning:
            busy = self._answer()
            for entry in self.scheduler.cancelled():
                self._finish(entry, "cancelled")
                busy = True
            busy |= self._admit(time.perf_counter())
            entries = self.scheduler.next(time.perf_counter())
            if entries:
                self._advance(entries)
            return busy or bool(entries)

    def add(self, run: Run, tokens: int, forced: int | None, seconds: Callable[[], float]) -> None:
        """Queue a run; `Busy` with so many `seconds` where the queue is full."""
        if self.closed:
            raise RuntimeError("the engine is closed")
        self.scheduler.add(run, tokens, forced, seconds)
        if self.closed:  # meanwhile: nobody else would end this run
            self.close()
        self.wake()

    def ask(self, question: Question[T], tokens: int) -> T:
        """The answer to a question to the model, worked out between the turns of the runs.

        Args:
            tokens: how many the KV cache must hold for it. It waits for no run, since a paused one
                would let a person wait for ever: where everything is promised to runs, that much
                can come on top, of one question at a time.

        Raises:
            RuntimeError: the engine is closed.
        """
        if not self.threaded or threading.current_thread() is self._thread:
            with self._turning:
                future = self._questions.put(question, self.scheduler.bytes(tokens))
                while not future.done():
                    self._answer()
        else:
            future = self._questions.put(question, self.scheduler.bytes(tokens))
            self.wake()
        return future.result()

    def logits_before(self, run: Run, index: int) -> Question[torch.Tensor]:
        """The logits of a step of a run, by running what no kept cache holds of its prefix.

        *Shape:* (vocab,)
        """
        context = array("q", run.context(index))
        slot = self.places.take(run, context, len(context))
        try:
            while True:
                feed = next_feed(context[slot.length :], slot, 1, CHUNK)
                (output,) = self.backbone.forward([feed])
                if len(output.logits):
                    self.places.keep(context, slot, run)
                    return output.logits[-1]
                yield
        finally:
            slot.release()

    def wake(self) -> None:
        """Have the loop look again; starts its thread if none is running."""
        if not self.threaded or self.closed:
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._turn_on, name="decoding", daemon=True)
                self._thread.start()
        self._awake.set()

    def close(self) -> None:
        """End all runs and the thread."""
        with self._turning:
            self.closed = True
            for entry in self.scheduler.all():
                self._finish(entry, "cancelled")
            self._questions.close()
        self._awake.set()
        with self._starting:  # a thread that is there has been started
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def _turn_on(self) -> None:
        try:
            while not self.closed:
                self._awake.clear()
                pause = 0.0
                try:
                    if not self.turn():
                        pause = self.scheduler.until_due(time.perf_counter())
                    self._failures = 0
                except Exception as error:  # whatever happens in a turn, the next one comes
                    log.exception("a turn of the loop failed")
                    self._failures += 1
                    if self._failures >= PATIENCE:
                        self._give_up(error)
                    time.sleep(BREATH)  # not at once: it may fail in the same way
                if pause:
                    self._awake.wait(min(pause, threading.TIMEOUT_MAX))
        finally:
            if not self.closed:  # the thread itself dies, of whatever it is
                self._revive()

    def _revive(self) -> None:
        """Another thread takes over; who ran is told, since a step may have been half done."""
        log.critical("the loop died and is started again", exc_info=True)
        self._give_up(RuntimeError("decoding stopped and was started again"))
        with self._starting:
            self._thread = None
        self.wake()

    def _give_up(self, error: Exception) -> None:
        self.restarts += 1
        with self._turning:
            for entry in list(self.scheduler.running):
                self._fail(entry, error)

    def _answer(self) -> bool:
        self.scheduler.aside = self._questions.nbytes
        self.places.hold()
        busy = self._questions.turn()
        self.scheduler.aside = self._questions.nbytes
        return busy

    def _admit(self, now: float) -> bool:
        """Let in who there is room for. Whether there was anybody."""
        anybody = False
        self.scheduler.unpark(now)
        while True:
            while (entry := self.scheduler.admit()) is not None:
                anybody = True
                try:
                    self._begin(entry)
                except Exception as error:
                    if not self._give_way(entry, error):
                        self._fail(entry, error)
            idle = self.scheduler.idle(now)
            if idle is None:
                break
            self._park(idle)
        for place, entry in enumerate(list(self.scheduler.waiting), 1):
            if entry.place != place:
                entry.place = place
                entry.run.tell(Waiting(place))
        return anybody

    def _outcome(self, entry: Entry, outputs: list[Output]) -> Callable[[], None] | None:
        """Have one run decide; returns what is left to do to end it, where it is over.

        A fault in one run ends that run alone.
        """
        try:
            reason = self._decide(entry, outputs)
        except Exception as error:
            return partial(self._fail, entry, error)
        return partial(self._finish, entry, reason) if reason else None

    def _fail(self, entry: Entry, error: Exception) -> None:
        log.error("run %s failed", entry.run.handle, exc_info=error)
        for row in entry.decoding.rows if entry.decoding else ():
            row.give_back()  # not to be kept
        self._finish(entry, "error", f"{type(error).__name__}: {error}")

    def _begin(self, entry: Entry) -> None:
        """Give a run its place in the cache, for the first time or after it was parked."""
        run, decoding = entry.run, entry.decoding
        if decoding is None:
            context = array("q", run.context(len(run.steps)))
            decoding = Decoding(
                run.request,
                [Row(context, None)],
                self.text,
                len(run.prompt_ids),
                run.steps,
                run.moments,
                entry.forced,
            )
        for row in decoding.rows:
            row.slot = self.places.take(run, row.context, entry.tokens)
        if entry.decoding is None:
            entry.reused = decoding.rows[0].slot.length
            entry.decoding = decoding

    def _park(self, entry: Entry) -> None:
        """A paused run makes room; what it has is kept for as long as there is room for that."""
        self.scheduler.park(entry)
        self.places.leave(entry)

    def _give_way(self, wanting: Entry, error: Exception) -> bool:
        """Whether that was for lack of memory, and the run can try again when there is more."""
        if not (no_memory(error) and self.places.give_way(wanting)):
            return False
        log.warning("out of memory; KV caches get %d bytes now", self.scheduler.cache_bytes)
        return True

    def _advance(self, entries: list[Entry]) -> None:
        """One pass of the model over what these runs feed; then each of them decides."""
        start, decodings = time.perf_counter(), [entry.decoding for entry in entries]
        prefilling = tuple(e.run.handle for e in entries if not e.decoding.prefilled)
        before = sum(len(decoding.steps) for decoding in decodings)
        held = [(row.slot, row.slot.length) for d in decodings for row in d.rows]
        for decoding in decodings:
            decoding.clock.start()
        try:
            fed = [entry.decoding.feeds(entry.allowance) for entry in entries]
            feeds = [feed for its in fed for feed in its]
            hidden = any(decoding.wants_hidden for decoding in decodings)
            outputs = iter(self.backbone.forward(feeds, hidden))
        except Exception as error:
            for slot, length in held:
                slot.truncate(length)
            self._without_logits(entries, error)
            return
        for decoding in decodings:
            decoding.clock.stop()
        ends = [
            self._outcome(entry, list(islice(outputs, len(its))))
            for entry, its in zip(entries, fed, strict=True)
        ]
        self.timeline.add(
            Turn(
                start_s=start,
                duration_s=time.perf_counter() - start,
                handles=tuple(entry.run.handle for entry in entries),
                prefilling=prefilling,
                waiting=len(self.scheduler.waiting),
                tokens=sum(len(feed.token_ids) for feed in feeds),
                written=sum(len(decoding.steps) for decoding in decodings) - before,
            )
        )
        for end in filter(None, ends):  # behind the turn: who reads an end finds it all told
            end()

    def _without_logits(self, entries: list[Entry], error: Exception) -> None:
        """A pass failed: whose fault it is shows when everyone runs alone."""
        if self._give_way(entries[-1], error):
            return
        if len(entries) == 1:
            self._fail(entries[0], error)
            return
        log.warning("a pass over %d runs failed; each goes on alone", len(entries))
        for entry in entries:
            self._advance([entry])

    def _decide(self, entry: Entry, outputs: list[Output]) -> str | None:
        """What one run makes of its logits: steps, reports. Returns why it is over, if it is."""
        decoding, run = entry.decoding, entry.run
        decoding.clock.start()
        decision, reason = decoding.decide(outputs), None
        for choice in decision.choices if decision else ():
            moment = Moment(run.request.strategy)
            self.trace.keep(moment, choice.distribution.logits)
            run.moments.append(moment)  # before the step: whoever sees that can ask for this
            step = decoding.step(choice)
            run.tell(step)
            decoding.clock.start()
            reason = decoding.ended(step, self.end_ids)
            if reason:
                break
        decoding.clock.stop()
        if decision is None:  # still in the prompt: no step, for neither pace nor pause
            return None
        for report in decision.reports:
            run.tell(report)
        reason = reason or decision.ended or ("length" if decoding.full else None)
        if not reason:
            run.stepped()
        return reason

    def _finish(self, entry: Entry, reason: str, message: str = "") -> None:
        self.scheduler.remove(entry)
        decoding = entry.decoding
        clock = decoding.clock if decoding else Clock()
        text, nbytes = "", 0
        try:
            if decoding is not None:
                text = decoding.final_text(reason)
                nbytes = self.places.leave(entry)
        except Exception:  # whoever reads must get the end
            log.exception("the end of run %s failed", entry.run.handle)
        finally:
            for row in decoding.rows if decoding else ():
                row.give_back()
        self._tidier.tidy()
        entry.run.tell(
            Finished(
                reason=reason,
                message=message,
                text=text,
                prefill_s=clock.prefill,
                decode_s=clock.decode,
                tokens_per_s=(clock.steps - 1) / clock.decode if clock.decode else 0.0,
                cache_bytes=nbytes,
                reused=entry.reused,
            )
        )
