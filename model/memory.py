"""Memory that the C library holds on to.

Logits, keys and values come and go in blocks of many sizes, and what is freed between others stays
with the process: under the load of a classroom hundreds of MiB within minutes. glibc gives whole
pages back when it is asked to.
"""

from __future__ import annotations

import ctypes
import time

EVERY = 15.0  # seconds between two times; one takes milliseconds


class Tidier:
    """Gives freed memory back to the system now and then, where the C library can."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        try:
            self._trim = ctypes.CDLL(None).malloc_trim
        except (OSError, AttributeError, TypeError):  # another C library
            self._trim = None

    def tidy(self) -> None:
        """To be called whenever something was freed."""
        now = time.perf_counter()
        if self._trim is not None and now - self._last > EVERY:
            self._trim(0)
            self._last = time.perf_counter()
