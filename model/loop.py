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
from .kv_cache import Kept, Slot
from .questions import Question, Questions
from .run import Run
from .scheduler import Entry, Scheduler
from .timeline import Timeline, Turn
from .token_text import TokenText
from .trace import Moment, Trace

T = TypeVar("T")
log = logging.getLogger(__name__)
BREATH = 0.1  # seconds after a turn that failed


class Loop:
    """Takes the runs of a scheduler through a backbone, one turn after the other.

    Nothing else touches the model: what other threads want from it they `ask`. An idle loop
    sleeps; it does not poll.

    Args:
        backbone: the model.
        scheduler: who is next.
        text: the vocabulary as text.
        end_ids: tokens that end a run.
        trace: where each step's logits are kept.
        threaded: False leaves the turning to the caller of `turn`.
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
            self._finish(entry, "cancelled")
        self.kept = Kept()

    def turn(self) -> bool:
        """One turn: a step of one run, a piece of one question. False if there was neither."""
        with self._turning:
            busy = self._answer()
            for entry in self.scheduler.cancelled():
                self._finish(entry, "cancelled")
                busy = True
            self._admit()
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
        context = run.context(index)
        family, spare = (run.handle, run.parent), self.scheduler.spare
        slot = self.kept.take(context, len(run.prompt_ids), family, spare)
        while True:
            (output,) = self.backbone.forward([next_feed(context[slot.length :], slot)])
            if len(output.logits):
                self._keep(context, slot, run)
                return output.logits[-1]
            yield

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
        while not self.closed:
            self._awake.clear()
            pause = 0.0
            try:
                if not self.turn():
                    pause = self.scheduler.until_due(time.perf_counter())
            except Exception:  # whatever happens in a turn, the next one comes
                log.exception("a turn of the loop failed")
                time.sleep(BREATH)  # not at once: it may fail in the same way
            if pause:
                self._awake.wait(min(pause, threading.TIMEOUT_MAX))

    def _answer(self) -> bool:
        self.scheduler.aside = self._questions.nbytes
        self.kept.shrink(self.scheduler.spare)
        busy = self._questions.turn()
        self.scheduler.aside = self._questions.nbytes
        return busy

    def _admit(self) -> None:
        while (entry := self.scheduler.admit()) is not None:
            self._guarded(entry, self._begin)
        for place, entry in enumerate(list(self.scheduler.waiting), 1):
            if entry.place != place:
                entry.place = place
                entry.run.tell(Waiting(place))

    def _guarded(self, entry: Entry, act: Callable[..., None], *rest: Any) -> None:
        """A fault in one run ends that run alone."""
        try:
            act(entry, *rest)
        except Exception as error:
            self._fail(entry, error)

    def _fail(self, entry: Entry, error: Exception) -> None:
        log.error("run %s failed", entry.run.handle, exc_info=error)
        self._finish(entry, "error", f"{type(error).__name__}: {error}")

    def _begin(self, entry: Entry) -> None:
        run = entry.run
        context = array("q", run.context(len(run.steps)))
        prompt = len(run.prompt_ids)
        slot = None
        if run.request.use_cache:
            slot = self.kept.take(context, prompt, (run.handle, run.parent), self.scheduler.spare)
        entry.reused = slot.length if slot is not None else 0
        entry.decoding = Decoding(
            run.request,
            [Row(context, slot)],
            self.text,
            prompt,
            run.steps,
            run.moments,
            entry.forced,
        )

    def _advance(self, entries: list[Entry]) -> None:
        """One pass of the model over what these runs feed; then each of them decides."""
        start, decodings = time.perf_counter(), [entry.decoding for entry in entries]
        kind = "decode" if all(decoding.prefilled for decoding in decodings) else "prefill"
        before = sum(len(decoding.steps) for decoding in decodings)
        for decoding in decodings:
            decoding.clock.start()
        try:
            fed = [decoding.feeds() for decoding in decodings]
            feeds = [feed for its in fed for feed in its]
            hidden = any(decoding.wants_hidden for decoding in decodings)
            outputs = iter(self.backbone.forward(feeds, hidden))
        except Exception as error:  # whoever's fault it is, nobody has logits
            for entry in entries:
                self._fail(entry, error)
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
                kind=kind,
                tokens=sum(len(feed.token_ids) for feed in feeds),
                written=sum(len(decoding.steps) for decoding in decodings) - before,
            )
        )

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
                nbytes = self._keep_rows(entry, reason)
        except Exception:  # whoever reads must get the end
            log.exception("the end of run %s failed", entry.run.handle)
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

    def _keep_rows(self, entry: Entry, reason: str) -> int:
        """Keep what the run leaves; returns the bytes of keys and values that it came to."""
        nbytes = 0
        for row in entry.decoding.rows:
            if row.slot is not None:
                nbytes += row.slot.length * self.backbone.cache_bytes_per_token
                if reason != "error":  # a fault may have left the cache half written
                    self._keep(row.context, row.slot, entry.run)
        return nbytes

    def _keep(self, context: Sequence[int], slot: Slot, run: Run) -> None:
        self.kept.put(context, slot, run.handle)
        self.kept.shrink(self.scheduler.spare)
