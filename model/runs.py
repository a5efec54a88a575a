"""The runs that can still be asked about, by handle."""

from __future__ import annotations

import threading
from collections import OrderedDict

from .errors import Gone
from .run import Run

STEP, CANDIDATE = 2_000, 150  # bytes that the report of a step takes, and each candidate in it


class Runs:
    """Every run that is still decoding, and finished ones within a budget.

    Of the finished ones the least recently used go first; the last one used always stays.

    Args:
        most: how many there may be.
        nbytes: what their reports may take, as estimated.
    """

    def __init__(self, most: int, nbytes: int) -> None:
        self.most, self.nbytes = most, nbytes
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def forked(self) -> None:
        """In a forked process nobody holds the lock."""
        self._lock = threading.Lock()

    def add(self, run: Run) -> None:
        with self._lock:
            self._runs[run.handle] = run
            self._shrink()

    def get(self, handle: str) -> Run:
        """The run of this handle.

        Raises:
            Gone: it never was, or is no longer kept.
        """
        with self._lock:
            found = self._runs.get(handle) if isinstance(handle, str) else None
            if found is None:
                raise Gone("run", handle)
            self._runs.move_to_end(handle)
            return found

    def _shrink(self) -> None:
        over = len(self._runs) - self.most
        held = {handle: size(run) for handle, run in self._runs.items()}
        nbytes = sum(held.values())
        for handle in list(held)[:-1]:
            if over <= 0 and nbytes <= self.nbytes:
                break
            if self._runs[handle].finished is not None:
                del self._runs[handle]
                over, nbytes = over - 1, nbytes - held[handle]


def size(run: Run) -> int:
    """About how many bytes its events take."""
    return len(run.steps) * (STEP + run.request.num_candidates * CANDIDATE)
