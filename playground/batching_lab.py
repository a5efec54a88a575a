"""The lab of batching: one workload in static batches, then continuously, told as it happens."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from model import Engine, Passage, Round, Workload

from . import settings

FRAME = 1 / 8  # seconds between two messages
WAYS = ("static", "continuous")  # in the order in which they run
MS = 1000
WARM_UP = 8  # tokens a slot


def workload(values: Mapping[str, Any], prompts: Sequence[str]) -> Workload:
    """The workload that the controls describe.

    Raises:
        FieldError: a value outside its range.
    """
    names = ("requests", "shortest", "longest", "spread_s", "slots")
    given = {name: values.get(name) for name in names}
    return Workload.drawn(prompts, **given, seed=settings.seed(values.get("seed")))


class Lab:
    """Runs a workload in both ways, one after the other, since they are compared in time.

    Attributes:
        handle: names the lab to its page; unguessable.
        rounds: those that have begun, of the two that count.
    """

    def __init__(self, engine: Engine, workload: Workload) -> None:
        self.engine, self.workload = engine, workload
        self.handle = secrets.token_urlsafe(12)
        self.rounds: list[Round] = []
        self._now: Round | None = None  # what runs, the warm-up included
        self.cancelled = False

    def cancel(self) -> None:
        """End it within one step. Safe at any time, and more than once."""
        self.cancelled = True
        if self._now is not None:
            self._now.cancel()

    def messages(self) -> Iterator[dict[str, Any]]:
        """What has happened so far, again and again; each says it all, so that one may be lost.

        Closing this iterator ends the lab.

        Raises:
            Exception: what ended a round.
        """
        try:
            yield from self._followed(Round(self.engine, self._warm_up(), WAYS[0]))
            for way in WAYS:
                round_ = Round(self.engine, self.workload, way)
                self.rounds.append(round_)
                yield from self._followed(round_)
            yield {**self._message(), "ended": "stopped" if self.cancelled else "done"}
        finally:
            self.cancel()

    def _followed(self, round_: Round) -> Iterator[dict[str, Any]]:
        self._now = round_
        if self.cancelled:  # perhaps before it was here to be cancelled
            return
        round_.start()
        yield self._message()
        while not round_.wait(FRAME):
            yield self._message()
        if round_.error is not None:
            raise round_.error

    def _warm_up(self) -> Workload:
        """A few tokens in every slot, not measured: else the first round alone would start cold."""
        arrivals = self.workload.arrivals[: self.workload.slots]
        return replace(
            self.workload,
            arrivals=tuple(replace(one, tokens=WARM_UP, arrival_s=0.0) for one in arrivals),
        )

    def _message(self) -> dict[str, Any]:
        arrivals = self.workload.arrivals
        prompts = list(dict.fromkeys(arrival.prompt for arrival in arrivals))
        return {
            "lab": self.handle,
            "slots": self.workload.slots,
            "seed": self.workload.seed,
            "prompts": prompts,
            "requests": [
                [prompts.index(a.prompt), a.tokens, round(a.arrival_s * MS)] for a in arrivals
            ],
            "rounds": [_round(round_) for round_ in self.rounds],
        }


def _round(round_: Round) -> dict[str, Any]:
    """How it goes, in whole milliseconds since it began."""
    # In this order: what is in the passages is never later than "now".
    passages = [_passage(passage) for passage in round_.passages]
    measures = round_.measures
    now = measures.total_s if measures else round_.now_s
    return {
        "way": round_.way,
        "now": round(now * MS),
        "passages": passages,
        "measures": asdict(measures) if measures else None,
    }


def _passage(passage: Passage) -> list[Any]:
    """Slot, start, end, and when its tokens came, each as the time since the one before."""
    last, gaps = 0, []
    for step in list(passage.steps):
        moment = round(step * MS)
        gaps.append(moment - last)
        last = moment
    started, ended = passage.started_s, passage.ended_s
    return [
        passage.slot,
        None if started is None else round(started * MS),
        None if ended is None else round(ended * MS),
        gaps,
    ]
