"""Threads and the helpers that OpenMP gives each of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def short_lived(act: Callable[[], T]) -> T:
    """What `act` returns or raises, called in a thread that is gone afterwards.

    OpenMP keeps a team of helpers for every thread that has computed with torch, for as long as
    that lives. As soon as all teams together are more than there are cores, helpers no longer wait
    for work but go to sleep in between, which makes each pass of a small model 1.6 times as long.
    So whatever computes beside the engine's loop, if only once at the start, does it in a thread
    that takes its team along.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(act).result()
