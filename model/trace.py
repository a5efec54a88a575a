"""What is kept of every step, so that it can be weighed again under other settings."""

from __future__ import annotations

import threading
from collections import OrderedDict

import torch

from .strategies import Strategy


class Moment:
    """One recorded step.

    Attributes:
        strategy: what chose its token.
        logits: *Shape:* (vocab,), fp32, on the CPU; None once given up.
    """

    __slots__ = ("logits", "strategy")

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.logits: torch.Tensor | None = None


class Trace:
    """The logits of many steps of many runs, within a byte budget; least recently used go first.

    A step whose logits are gone is not lost: one forward pass over its prefix brings them back.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._held: OrderedDict[Moment, None] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, moment: Moment, logits: torch.Tensor) -> None:
        """Keep a copy of `logits` for this moment, giving up others where needed."""
        copied = logits.detach().to("cpu", torch.float32, copy=True)
        with self._lock:
            if moment.logits is None:
                moment.logits = copied
                self.nbytes += copied.nbytes
                self._held[moment] = None
            while self._held and self.nbytes > self.budget:
                oldest, _ = self._held.popitem(last=False)
                self.nbytes -= oldest.logits.nbytes
                oldest.logits = None

    def forked(self) -> None:
        """In a forked process nobody holds the lock."""
        self._lock = threading.Lock()

    def logits(self, moment: Moment) -> torch.Tensor | None:
        """This moment's logits if they are still here."""
        with self._lock:
            if moment in self._held:
                self._held.move_to_end(moment)
            return moment.logits
