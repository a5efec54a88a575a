"""Gradio without the type stubs that it writes at every start."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwritten() -> Iterator[None]:
    """In here component classes are made without `.pyi` files.

    Whenever a component class is made, gradio 6 parses its source, renders a type stub and compares
    it with the file beside it: help for editors that takes half of gradio's import, at every start.
    It passes over classes whose file can't be told, so in here no class of gradio's has one.
    """
    told = inspect.getfile

    def getfile(thing: object) -> str:
        if isinstance(thing, type) and thing.__module__.startswith("gradio."):
            raise OSError("its stub is left as it is")
        return told(thing)

    inspect.getfile = getfile
    try:
        yield
    finally:
        inspect.getfile = told
