"""The feeder: many requests through an engine, as many at once as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue

from .errors import Busy
from .request import Request
from .run import Result, Run

PATIENCE = 0.01  # seconds to the next try where others fill the queue


class Feeder:
    """Starts the next request when any of its runs is over, not when the oldest is.

    Args:
        start: starts a run, or raises `Busy`.
        turn: takes the engine a turn further, False if it is idle; None where it has a thread.
        width: how many runs at once.
    """

    def __init__(
        self, start: Callable[[Request], Run], turn: Callable[[], bool] | None, width: int
    ) -> None:
        self.start, self.turn, self.width = start, turn, width
        self._runs: list[Run] = []
        self._going = 0
        self._over: SimpleQueue[Run] = SimpleQueue()

    def results(self, requests: Iterable[Request]) -> list[Result]:
        """Of all of them, in order. Whatever is raised, the other runs are cancelled."""
        try:
            for request in requests:
                while not self._started(request):
                    self._next_over()
            while self._going:
                self._next_over()
            return [run.result() for run in self._runs]
        finally:
            for run in self._runs:
                run.cancel()

    def _started(self, request: Request) -> bool:
        if self._going >= self.width:
            return False
        try:
            run = self.start(request)
        except Busy:
            return False
        self._runs.append(run)
        self._going += 1
        run.then(partial(self._over.put, run))
        return True

    def _next_over(self) -> None:
        """Wait for one of the runs; where there is none, for others, who fill the queue."""
        if not self._going:
            self._pass_time()
            return
        while self.turn and self._over.empty():
            self._pass_time()
        run = self._over.get()
        self._going -= 1
        if run.finished.reason == "error":
            run.result()

    def _pass_time(self) -> None:
        if not (self.turn and self.turn()):
            time.sleep(PATIENCE)
