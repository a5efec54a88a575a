"""From a run to the page: the newest state, at most so many times a second.

The engine never waits for a page. What has come since the last message goes out in one piece, so
that a page that is slow gets fewer and larger messages and never falls behind.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from model import Engine, Finished, Run, Started, Step, Waiting

from . import messages

FRAME = 1 / 20  # seconds between two messages of one run
PATIENCE = 2.0  # seconds without news after which the connection is tried anyway


class Audience:
    """Which page watches which runs, so that a page that closes stops what it started."""

    def __init__(self) -> None:
        self._runs: dict[str, set[Run]] = defaultdict(set)
        self._lock = threading.Lock()

    def watch(self, session: str, run: Run) -> None:
        """This page follows `run` now; what it followed before ends."""
        with self._lock:
            before, self._runs[session] = self._runs[session], {run}
        for other in before - {run}:
            other.cancel()

    def leave(self, session: str) -> None:
        """The page was closed."""
        with self._lock:
            runs = self._runs.pop(session, set())
        for run in runs:
            run.cancel()

    def done(self, session: str, run: Run) -> None:
        with self._lock:
            self._runs.get(session, set()).discard(run)
            if not self._runs.get(session, True):
                del self._runs[session]


def follow(engine: Engine, run: Run) -> Iterator[dict[str, Any]]:
    """The messages of a run until it ends. Closing this iterator cancels the run."""
    seen = 0
    try:
        while True:
            events = run.wait(seen, timeout=PATIENCE)
            seen += len(events)
            message = _message(engine, run, events)
            yield message
            if "finished" in message:
                return
            if message["steps"]:  # the first token is waited for, not slept through
                time.sleep(FRAME)
    finally:
        run.cancel()


def _message(engine: Engine, run: Run, events: list[Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"run": run.handle, "steps": []}
    for event in events:
        match event:
            case Started():
                message.update(messages.beginning(engine, run, event))
            case Waiting():
                message["waiting"] = event.place
            case Step():
                message.setdefault("from", event.index)
                message["steps"].append(messages.step(engine, event))
            case Finished():
                message["finished"] = messages.finished(event)
    message.setdefault("from", len(run.steps))
    return message


def encoded(message: dict[str, Any]) -> str:
    """One message as the page's component takes it; ASCII, so that nothing in it can't be sent."""
    return json.dumps(message, allow_nan=False, separators=(",", ":"))
