"""The loop: schedule, run, decide, again and again, for all runs of an engine."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch

from .backbone import Backbone, Output
from .decoding import Clock, Decoding, Row, next_feed
from .events import Finished, Waiting
from .kept import Kept
from .kv_cache import CHUNK, Slot
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
        self.kept = Kept()
        self.timeline = Timeline()
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

        Locks are made anew, since who held them is not here, and kept caches are given up, since
        they may be half written.
        """
        self._begin_anew()
        self.scheduler.forked()
        for entry in self.scheduler.all():
            entry.run.forked()
            for row in entry.decoding.rows if entry.decoding else ():
                row.slot = None
            self._finish(entry, "cancelled")
        self.kept = Kept()
        self.backbone.slots.forget()

    def turn(self) -> bool:
        """One turn: a step of everyone, a piece of one question. False if there was neither."""
        with self._turning:
            busy = self._answer()
            for entry in self.scheduler.cancelled():
                self._finish(entry, "cancelled")
                busy = True
            self._admit(time.perf_counter())
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
        slot = self._slot(run, context, len(context))
        try:
            while True:
                feed = next_feed(context[slot.length :], slot, 1, CHUNK)
                (output,) = self.backbone.forward([feed])
                if len(output.logits):
                    self._keep(context, slot, run)
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
        self._hold()
        busy = self._questions.turn()
        self.scheduler.aside = self._questions.nbytes
        return busy

    def _hold(self, more: int = 0) -> None:
        """Keep the promise of the cache's size: first what is kept gives way, then empty rows.

        Args:
            more: bytes that are about to be kept in addition.
        """
        spare, slots = self.scheduler.spare - more, self.backbone.slots
        self.kept.shrink(max(0, spare - slots.unused))
        slots.tighten(max(0, spare - self.kept.nbytes))
        slots.spare = max(0, spare - self.kept.nbytes)

    def _admit(self, now: float) -> None:
        self.scheduler.unpark(now)
        while True:
            while (entry := self.scheduler.admit()) is not None:
                self._guarded(entry, self._begin)
            idle = self.scheduler.idle(now)
            if idle is None:
                break
            self._park(idle)
        for place, entry in enumerate(list(self.scheduler.waiting), 1):
            if entry.place != place:
                entry.place = place
                entry.run.tell(Waiting(place))

    def _guarded(self, entry: Entry, act: Callable[..., None], *rest: Any) -> None:
        """A fault in one run ends that run alone.

        One that finds no memory to begin with tries again later. What was half decided can't be
        decided again: the strategy has gone on already.
        """
        try:
            act(entry, *rest)
        except Exception as error:
            if act == self._begin and _no_memory(error) and self._make_room(entry):
                return
            self._fail(entry, error)

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
            row.slot = self._slot(run, row.context, entry.tokens)
        if entry.decoding is None:
            entry.reused = decoding.rows[0].slot.length
            entry.decoding = decoding

    def _slot(self, run: Run, context: Sequence[int], tokens: int) -> Slot:
        """A slot for so many tokens, with what is kept of this beginning."""
        prompt, found = len(run.prompt_ids), None
        if run.request.use_cache:
            found = self.kept.take(context, prompt, (run.handle, run.parent))
        self._hold()
        slot = self.backbone.slots.take(tokens, prompt)
        if found is not None:
            slot.load(*found)
        return slot

    def _park(self, entry: Entry) -> None:
        """A paused run makes room; what it has is kept for as long as there is room for that."""
        self.scheduler.park(entry)
        self._leave(entry)

    def _leave(self, entry: Entry) -> int:
        """Give a run's places back, keeping what they hold; returns the bytes of that."""
        nbytes = 0
        for row in entry.decoding.rows:
            if row.slot is None:
                continue
            try:
                if entry.run.request.use_cache and row.slot.length:
                    nbytes += row.slot.length * self.backbone.layout.bytes_per_token
                    self._keep(row.context, row.slot, entry.run)
            except Exception:  # it is only for later
                log.exception("nothing is kept of run %s", entry.run.handle)
            finally:
                row.give_back()
        return nbytes

    def _make_room(self, wanting: Entry) -> bool:
        """After an allocation failed: promise less from now on, and let `wanting` try again later.

        Returns:
            False if it is alone, and there is nothing left to give up.
        """
        gave_up = len(self.kept) > 0
        self.kept.shrink(0)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        others = sum(e.nbytes for e in self.scheduler.running if e is not wanting)
        if not others and not gave_up:
            return False
        if others:
            self.scheduler.cache_bytes = max(others, wanting.nbytes)
        log.warning("out of memory; KV caches get %d bytes now", self.scheduler.cache_bytes)
        for row in wanting.decoding.rows if wanting.decoding else ():
            row.give_back()
        self.scheduler.put_back(wanting)
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
        for entry, its in zip(entries, fed, strict=True):
            self._guarded(entry, self._decide, list(islice(outputs, len(its))))
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

    def _without_logits(self, entries: list[Entry], error: Exception) -> None:
        """A pass failed: whose fault it is shows when everyone runs alone."""
        if _no_memory(error) and self._make_room(entries[-1]):
            return
        if len(entries) == 1:
            self._fail(entries[0], error)
            return
        log.warning("a pass over %d runs failed; each goes on alone", len(entries))
        for entry in entries:
            self._advance([entry])

    def _decide(self, entry: Entry, outputs: list[Output]) -> None:
        """What one run makes of its logits: steps, reports, perhaps its end."""
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
            return
        for report in decision.reports:
            run.tell(report)
        reason = reason or decision.ended or ("length" if decoding.full else None)
        if reason:
            self._finish(entry, reason)
        else:
            run.stepped()

    def _finish(self, entry: Entry, reason: str, message: str = "") -> None:
        self.scheduler.remove(entry)
        decoding = entry.decoding
        clock = decoding.clock if decoding else Clock()
        text, nbytes = "", 0
        try:
            if decoding is not None:
                text = decoding.final_text(reason)
                nbytes = self._leave(entry)
        except Exception:  # whoever reads must get the end
            log.exception("the end of run %s failed", entry.run.handle)
        finally:
            for row in decoding.rows if decoding else ():
                row.give_back()
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

    def _keep(self, context: Sequence[int], slot: Slot, run: Run) -> None:
        """Keep what a slot holds, if that fits beside what is promised."""
        nbytes = slot.length * self.backbone.layout.bytes_per_token
        if nbytes <= self.scheduler.spare:
            self._hold(nbytes)
            self.kept.put(context, slot.park(), run.handle)


def _no_memory(error: Exception) -> bool:
    """Whether an allocation failed, here or on a device."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error)
