"""Lanes that don't get in each other's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from model import Engine
from model.threads import short_lived

T = TypeVar("T")


def lane(engine: Engine, act: Callable[[], T]) -> T:
    """What `act` returns, called while no other thread has computed with torch and still lives.

    See `model.threads`: a peer would be slower beside the thread of an engine that idles, and the
    engine beside what a peer left behind.
    """
    try:
        return short_lived(act)
    finally:
        loop, thread = engine.loop, engine.loop._thread
        if thread is not None:
            loop.closed = True  # its thread ends; the next run starts another one
            loop._awake.set()
            thread.join()
            loop.closed = False
