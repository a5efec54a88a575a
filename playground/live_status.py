"""The live status: what the engine does for everyone, as a small answer to every page that asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from model import Engine

FRESH = 0.5  # seconds for which one answer serves every page
RECENT = 120.0  # seconds for which a restart of the loop is told


class LiveStatus:
    """Asks the engine at most every `FRESH` seconds, however many pages ask here.

    It is asked from one thread, that of the server's event loop.

    Args:
        engine: what decodes.
        clock: seconds that never go back.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine, self.clock = engine, clock
        self._asked = float("-inf")
        self._answer: dict[str, Any] = {}
        self._restarts = engine.status().restarts
        self._restarted = float("-inf")

    def answer(self) -> dict[str, Any]:
        """Runs, bytes and tokens a second; `restarted`: whether the loop was, a moment ago."""
        now = self.clock()
        if now - self._asked >= FRESH:
            self._asked, self._answer = now, self._look(now)
        return self._answer

    def _look(self, now: float) -> dict[str, Any]:
        status = self.engine.status()
        if status.restarts != self._restarts:
            self._restarts, self._restarted = status.restarts, now
        return {
            "running": status.running,
            "waiting": status.waiting,
            "cache_bytes": status.cache_bytes,
            "cache_budget": status.cache_budget,
            "tokens_per_s": round(status.tokens_per_s, 1),
            "restarted": now - self._restarted < RECENT,
        }

    def route(self, path: str) -> Route:
        """Answers there, for no longer than it is fresh."""

        async def status(request: Request) -> JSONResponse:
            return JSONResponse(self.answer(), headers={"Cache-Control": "no-store"})

        return Route(path, status)
