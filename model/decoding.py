"""Decoding one run, from its prompt to its end token: the engine's side of it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace

from .backbone import Feed, Output
from .events import Candidate, Effect, Step
from .kept import common
from .kv_cache import Slot
from .request import Request
from .strategies import Choice, Continuation, Decision, RowLogits
from .token_text import TokenText
from .trace import Moment


@dataclass
class Row:
    """One row of a sequence: its tokens, those merely proposed behind them, and its KV cache.

    Attributes:
        slot: None while the run is neither running nor about to.
        context: 64-bit integers, which processors read without a copy. Never changed in place,
            since strategies may hold on to it; a longer one costs microseconds to make.
    """

    context: array[int]
    slot: Slot | None
    proposed: tuple[int, ...] = ()

    @property
    def unfed(self) -> array[int]:
        """Tokens whose keys and values are not there."""
        return self.context[self.slot.length :] + array("q", self.proposed)

    @property
    def seen(self) -> array[int]:
        """All tokens, those proposed too."""
        return self.context + array("q", self.proposed) if self.proposed else self.context

    def go_on(self, continuation: Continuation, shared: bool, limit: int) -> Row:
        """The row that continues this one; with a slot of its own where others continue it too.

        Args:
            limit: tokens that there is room for.
        """
        context = self.context + array("q", continuation.append)
        # Of what was proposed, the cache keeps what became text. The newest token is always fed
        # again: only running it gives the next logits.
        held = len(self.context) + common(self.proposed, continuation.append)
        good = min(held, len(context) - 1)
        slot = self.slot.fork(good) if shared else self.slot
        slot.truncate(good)  # rejected proposals leave no trace
        return Row(context, slot, continuation.propose[: max(0, limit - len(context))])

    def give_back(self) -> None:
        """The place in the cache, if it has one."""
        if self.slot is not None:
            slot, self.slot = self.slot, None
            slot.release()


@dataclass
class Clock:
    """Where a sequence's time goes, in seconds. Time held back by pace or pause counts nowhere."""

    prefill: float = 0.0
    decode: float = 0.0
    steps: int = 0
    worked: float = 0.0
    since: float = 0.0
    last: float | None = None
    held: bool = False

    def start(self) -> None:
        """Work on this sequence begins."""
        self.since = time.perf_counter()

    def stop(self) -> float:
        """Work ends for now; returns the moment."""
        now = time.perf_counter()
        self.worked += now - self.since
        if not self.steps:
            self.prefill = self.worked
        return now

    def step(self) -> float:
        """Close one step; returns the work that it took."""
        now, worked = self.stop(), self.worked
        if self.last is not None:
            self.decode += worked if self.held else now - self.last
        self.steps += 1
        self.last, self.worked, self.held = now, 0.0, False
        return worked


@dataclass
class Decoding:
    """One run while it decodes: its rows, its text and its clock. Only the loop touches it.

    Attributes:
        forced: a token that takes the place of the first choice, for a branch.
        moments: one per step taken, inherited ones first.
        prefilled: whether its prompt is through, and its strategy has decided for the first time.
    """

    request: Request
    rows: list[Row]
    text: TokenText
    prompt_length: int
    steps: list[Step]
    moments: list[Moment]
    forced: int | None = None
    clock: Clock = field(default_factory=Clock)
    prefilled: bool = False

    def __post_init__(self) -> None:
        self.stopped_at: int | None = None  # where in the text the stop string begins
        self.decider = self.request.strategy.decider()
        self.wants_hidden = bool(getattr(self.decider, "wants_hidden", False))
        before = self.rows[0].context[: self.prompt_length]
        self.detokenizer = self.text.detokenizer(before)
        self.written = "".join(self.detokenizer.add(step.token_id) for step in self.steps)

    @property
    def pending(self) -> int:
        """Tokens that have to go through the model until the next decision."""
        return sum(len(row.context) + len(row.proposed) - row.slot.length for row in self.rows)

    def feeds(self, allowance: int) -> list[Feed]:
        """What this sequence sends through the model next: a piece of prompt, or its new tokens.

        Args:
            allowance: about how many tokens of it the pass may take.
        """
        each = allowance // len(self.rows)
        feeds = [next_feed(row.unfed, row.slot, 1 + len(row.proposed), each) for row in self.rows]
        behind = [feed for feed in feeds if not feed.logits]
        return behind or feeds  # the decision needs the logits of all rows at once

    def decide(self, outputs: Tokens[Output]) -> Decision | None:
        """The strategy's decision, or None while the prompt is still running.

        A token that a person forces is no decision of the strategy's: it says what it would have
        chosen, and its decider begins with the next step.

        Raises:
            ValueError: more rows than the strategy said, or none without an end.
        """
        if any(len(output.logits) == 0 for output in outputs):
            return None
        seen = [
            RowLogits(output.logits, row.seen, output.hidden)
            for row, output in zip(self.rows, outputs, strict=True)
        ]
        if self.forced is None:
            decision = self.decider.decide(seen)
        else:
            (row,) = seen
            choice = self.request.strategy.choose(row.logits[-1], row.context)
            decision = Decision((Continuation(0, (self.forced,)),), (choice,))
        self._apply(decision)
        self.prefilled = True
        return decision

    def _apply(self, decision: Decision) -> None:
        parents = [c.parent for c in decision.continuations]
        most = self.request.strategy.rows
        if len(parents) > most:
            raise ValueError(f"{len(parents)} rows, and the strategy said {most} at most")
        if not parents and decision.ended is None:
            raise ValueError("a decision that continues no row must say how the run ended")
        for place, row in enumerate(self.rows):
            if place not in parents:
                row.give_back()  # before others are copied, so that there are never more
        rows: list[Row] = []
        try:
            for i, continuation in enumerate(decision.continuations):
                # The last child takes its parent's slot over; the ones before it copy.
                shared = continuation.parent in parents[i + 1 :]
                parent = self.rows[continuation.parent]
                rows.append(parent.go_on(continuation, shared, self._limit))
        except BaseException:  # no memory for a copy
            for row in rows:
                if all(row.slot is not parent.slot for parent in self.rows):
                    row.give_back()
            raise
        self.rows = rows
        if not self.request.use_cache:  # that is what it is like without one
            for row in rows:
                row.slot.truncate(0)

    def step(self, choice: Choice) -> Step:
        """The report of one token, and its share of the running text."""
        token_id = choice.token_id if self.forced is None else self.forced
        piece = self.detokenizer.add(token_id)
        self.written += piece
        made = step_of(
            choice,
            self.text,
            index=len(self.steps),
            token_id=token_id,
            piece=piece,
            num_candidates=self.request.num_candidates,
            forced=self.forced is not None,
            duration_s=0.0,
        )
        made = replace(made, duration_s=self.clock.step())  # making the report is part of it
        self.forced = None
        self.steps.append(made)
        return made

    @property
    def full(self) -> bool:
        """Whether some row has come to the limit, also one whose tokens nobody has reported."""
        return any(len(row.context) >= self._limit for row in self.rows)

    @property
    def _limit(self) -> int:
        """Tokens that a row can have."""
        return self.prompt_length + self.request.max_new_tokens

    def ended(self, step: Step, end_ids: frozenset[int]) -> str | None:
        """Why the run ends with this step, or None."""
        if step.token_id in end_ids and not self.request.ignore_eos:
            return "eos"
        self.stopped_at = self._stop_at(len(step.text))
        if self.stopped_at is not None:
            return "stop"
        return "length" if len(self.steps) >= self.request.max_new_tokens else None

    def final_text(self, reason: str) -> str:
        """The new text, special tokens left out, cut before the stop string."""
        if reason == "stop":
            return self.written[: self.stopped_at]
        return self.written

    def _stop_at(self, newest: int) -> int | None:
        """Where the first stop string begins that reaches into the `newest` last characters."""
        found = []
        for stop in self.request.stop:
            start = max(0, len(self.written) - newest - len(stop) + 1)
            at = self.written.find(stop, start)
            if at >= 0:
                found.append(at)
        return min(found, default=None)


def next_feed(unfed: Tokens[int], slot: Slot, wanted: int, allowance: int) -> Feed:
    """The next pass over what a row has not run yet.

    Args:
        unfed: all of it.
        wanted: for how many of the last tokens logits are wanted; these stay together, and a pass
            that does not come to them yields none.
        allowance: about how many tokens it may take.
    """
    count = slot.piece(len(unfed), allowance)
    rest = len(unfed) - wanted
    if count < len(unfed) and rest:
        unfed, wanted = unfed[: min(count, rest)], 0
    return Feed(unfed, slot, wanted)


def step_of(
    choice: Choice,
    text: TokenText,
    *,
    index: int,
    token_id: int,
    piece: str,
    num_candidates: int,
    forced: bool,
    duration_s: float,
) -> Step:
    """The report of `token_id` at a place where the strategy made `choice`."""
    offered = choice.distribution
    rows = offered.candidates(num_candidates, (token_id, choice.token_id))
    return Step(
        index=index,
        token_id=token_id,
        text=piece,
        label=text.label(token_id),
        raw_prob=offered.raw_prob(token_id),
        final_prob=offered.final_prob(token_id),
        rank=offered.rank(token_id),
        entropy=offered.entropy,
        final_entropy=offered.final_entropy,
        kept=offered.kept,
        kept_prob=offered.kept_prob,
        effects=tuple(Effect(*effect) for effect in offered.effects()),
        draw=choice.draw,
        span=choice.span,
        choice=choice.token_id,
        forced=forced,
        candidates=tuple(Candidate(i, text.label(i), *rest) for i, *rest in rows),
        duration_s=duration_s,
    )
