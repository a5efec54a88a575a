"""From runs to the page: the newest state, at most so many times a second.

The engine never waits for a page. What has come since the last message goes out in one piece, so
that a page that is slow gets fewer and larger messages and never falls behind. A message costs
nearly the same however much it holds, so a full classroom gets them less often, not later.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from model import Engine, Finished, Run, Started, Step, Waiting

from . import messages

FRAME = 1 / 20  # seconds between two messages to one page
MOST_MESSAGES = 120  # a second, to all pages together
PATIENCE = 2.0  # seconds without news after which the connection is tried anyway
GLANCE = 0.25  # seconds after which news is looked for elsewhere than where it came last


class Audience:
    """Which place of which page watches which runs: a page that closes stops what it started."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], set[Run]] = {}
        self._lock = threading.Lock()

    def watch(self, session: str, place: str, runs: Iterable[Run]) -> None:
        """This place of the page follows `runs` now; what it followed before ends."""
        runs = set(runs)
        with self._lock:
            before = self._runs.get((session, place), set())
            self._runs[session, place] = runs
        for other in before - runs:
            other.cancel()

    def frame(self) -> float:
        """Seconds between two messages to one page, by how many are watching."""
        return max(FRAME, len(self._runs) / MOST_MESSAGES)

    def leave(self, session: str) -> None:
        """The page was closed."""
        with self._lock:
            places = [key for key in self._runs if key[0] == session]
            runs = [run for key in places for run in self._runs.pop(key)]
        for run in runs:
            run.cancel()

    def done(self, session: str, place: str, runs: Iterable[Run]) -> None:
        """These are watched no longer; a newer watch of the same place stays."""
        with self._lock:
            left = self._runs.get((session, place), set()) - set(runs)
            if left:
                self._runs[session, place] = left
            else:
                self._runs.pop((session, place), None)


def follow(
    engine: Engine, run: Run, frame: Callable[[], float] = lambda: FRAME
) -> Iterator[dict[str, Any]]:
    """The messages of a run until it ends. Closing this iterator cancels the run."""
    for told in follow_together(engine, [run], frame):
        yield told[0] if told else message(engine, run, [])


def follow_together(
    engine: Engine, runs: Sequence[Run], frame: Callable[[], float] = lambda: FRAME
) -> Iterator[list[dict[str, Any]]]:
    """The messages of several runs, one for each that has news, until all have ended.

    An empty list says that there was no news for a while. Closing this iterator cancels the runs.

    Args:
        frame: seconds to let pass between two messages.
    """
    seen = dict.fromkeys(runs, 0)
    going = list(runs)
    try:
        while going:
            told = []
            for run, events in _news(going, seen):
                seen[run] += len(events)
                told.append(message(engine, run, events))
            over = {one["run"] for one in told if "finished" in one}
            going = [run for run in going if run.handle not in over]
            yield told
            # The first token is waited for, not slept through.
            if any(one["steps"] for one in told):
                time.sleep(frame())
    finally:
        for run in runs:
            run.cancel()


def _news(going: list[Run], seen: dict[Run, int]) -> list[tuple[Run, list[Any]]]:
    """Runs and their new events; empty when there were none for a while.

    Runs advance together, so news of one is waited for, and that of all is taken. The one that
    had news last comes first in `going`.
    """
    end = time.monotonic() + PATIENCE
    while True:
        rest = end - time.monotonic()
        going[0].wait(seen[going[0]], timeout=rest if len(going) == 1 else min(GLANCE, rest))
        news = [(run, events) for run in going if (events := run.wait(seen[run], timeout=0))]
        if news:
            going.sort(key=lambda run: run is not news[0][0])
            return news
        if rest <= GLANCE:
            return []


def message(engine: Engine, run: Run, events: Sequence[Any]) -> dict[str, Any]:
    """What these events of a run tell."""
    told: dict[str, Any] = {"run": run.handle, "steps": []}
    for event in events:
        match event:
            case Started():
                told.update(messages.beginning(engine, run, event))
            case Waiting():
                told["waiting"] = event.place
            case Step():
                told.setdefault("from", event.index)
                told["steps"].append(messages.step(engine, event))
            case Finished():
                told["finished"] = messages.finished(event)
    told.setdefault("from", len(run.steps))
    return told


def encoded(message: dict[str, Any]) -> str:
    """One message as the page's component takes it."""
    try:
        return orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # half a character, which only ASCII escapes can say
        return json.dumps(message, allow_nan=False, separators=(",", ":"))
