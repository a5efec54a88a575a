"""The timeline: who ran in which turn of the loop, and how fast everyone together writes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

REMEMBERED = 1000  # turns
LATELY = 5.0  # seconds over which the rate is taken


@dataclass(frozen=True)
class Turn:
    """One turn of the loop.

    Attributes:
        start_s: when it began, on the clock of `time.perf_counter`.
        duration_s: how long it took, choice and report included.
        handles: whose runs took part.
        prefilling: those of them whose prompt was still running.
        waiting: how many runs were waiting for a place.
        tokens: how many tokens went through the model.
        written: how many tokens came out of it, as steps.
    """

    start_s: float
    duration_s: float
    handles: tuple[str, ...]
    prefilling: tuple[str, ...]
    waiting: int
    tokens: int
    written: int

    @property
    def kind(self) -> str:
        """`"decode"`, or `"prefill"` where the prompt of one of them was still running."""
        return "prefill" if self.prefilling else "decode"


class Timeline:
    """The latest turns."""

    def __init__(self) -> None:
        self._turns: deque[Turn] = deque(maxlen=REMEMBERED)

    def add(self, turn: Turn) -> None:
        self._turns.append(turn)

    def turns(self) -> list[Turn]:
        return list(self._turns)

    def clear(self) -> None:
        self._turns.clear()

    def pace(self) -> float:
        """Seconds that a turn takes, as of late; 0 where there was none."""
        recent = self.turns()[-20:]
        return sum(turn.duration_s for turn in recent) / len(recent) if recent else 0.0

    def rate(self, now: float) -> float:
        """Tokens written a second, of all runs together, in the last `LATELY` seconds."""
        recent = [turn for turn in self.turns() if turn.start_s > now - LATELY]
        span = now - recent[0].start_s if recent else 0.0
        return sum(turn.written for turn in recent) / span if span else 0.0
