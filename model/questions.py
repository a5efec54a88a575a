"""Questions to the model beside the runs: a step whose logits were given up, a text to be weighed.

A question is a generator. It yields between its passes through the model, so that the runs decode
on meanwhile, and returns the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
Question = Generator[None, None, T]


class Questions:
    """Answered one after the other, first come, first served."""

    def __init__(self) -> None:
        self.closed = False
        self._asked: deque[tuple[Question, int, Future]] = deque()

    def put(self, question: Question[T], nbytes: int = 0) -> Future[T]:
        """Hand a question in, from any thread.

        Args:
            nbytes: KV cache that it may come to need.

        Raises:
            RuntimeError: nobody will answer, the engine is closed.
        """
        future: Future = Future()
        self._asked.append((question, nbytes, future))
        if self.closed:
            self.close()
            future.result()
        return future

    @property
    def nbytes(self) -> int:
        """KV cache that the oldest question may come to need."""
        try:
            return self._asked[0][1]
        except IndexError:
            return 0

    def turn(self) -> bool:
        """Answer one piece of the oldest question. False if there is none."""
        try:
            question, nbytes, future = self._asked.popleft()
        except IndexError:
            return False
        try:
            next(question)
        except StopIteration as end:
            future.set_result(end.value)
        except BaseException as error:  # belongs to the one who asked
            future.set_exception(error)
        else:
            self._asked.appendleft((question, nbytes, future))
        return True

    def close(self) -> None:
        """Refuse all questions from now on."""
        self.closed = True
        while self._asked:
            try:
                *_, future = self._asked.popleft()
            except IndexError:  # another thread closes too
                return
            future.set_exception(RuntimeError("the engine is closed"))
