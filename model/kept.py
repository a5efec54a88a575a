"""Kept caches: what runs that are over left, so that one that goes on, branches or repeats them
starts from there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from . import kv_cache
from .kv_cache import Parked


@dataclass(eq=False)
class _Held:
    """What was parked, the tokens that it holds (int64), and the run that it was of."""

    token_ids: np.ndarray
    parked: Parked
    owner: str | None
    nbytes: int

    def serves(self, wanted: np.ndarray, prompt: int, family: Collection[str | None]) -> int:
        """For how many tokens of the beginning of `wanted`; see `Kept`."""
        alike = min(common(self.token_ids, wanted), len(wanted) - 1)
        if self.owner not in family:
            alike = min(alike, self.parked.exact)
        if self.parked.prompt == prompt <= alike:
            return alike
        return min(alike, self.parked.prompt, prompt) // kv_cache.CHUNK * kv_cache.CHUNK

    def within(self, other: _Held) -> bool:
        """Whether the other one serves for all that this one does."""
        length = len(self.token_ids)
        instead = self.owner == other.owner and self.parked.exact <= other.parked.exact
        return (
            self.parked.prompt == other.parked.prompt
            and (instead or length <= other.parked.exact)
            and common(self.token_ids, other.token_ids) == length
        )


class Kept:
    """Parked caches, least recently used given up first.

    Keys and values of one token differ in their last bits with the number of tokens that are run
    together. So that a result never depends on what others asked before, a cache serves where they
    were run as they would be now: behind a prompt of the same length all of it that is `exact`,
    else whole chunks of the prompt. What a run ran in its own way serves itself and its branches.

    Attributes:
        nbytes: of all of them.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._held: OrderedDict[_Held, None] = OrderedDict()
        # By how they begin: one that can serve shares a whole prompt or a first chunk.
        self._openings: dict[tuple[int, bytes], list[_Held]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, token_ids: Sequence[int], parked: Parked, owner: str | None = None) -> None:
        """Keep what holds the first `parked.length` of `token_ids`.

        Where another one serves for all that it does, that one is kept instead.

        Args:
            owner: handle of the run whose cache it was.
        """
        ids = np.array(token_ids[: parked.length], np.int64)
        held = _Held(ids, parked, owner, parked.nbytes)
        if not self._keys(held):
            return
        for other in self._alike(self._keys(held)):
            if held.within(other):
                self._held.move_to_end(other)
                return
            if other.within(held):
                self._drop(other)
        self._held[held] = None
        self.nbytes += held.nbytes
        for key in self._keys(held):
            self._openings.setdefault(key, []).append(held)

    def take(
        self, token_ids: Sequence[int], prompt: int, family: Collection[str | None] = ()
    ) -> tuple[Parked, int] | None:
        """What serves for most of the beginning of `token_ids`, and for how many tokens.

        At least the last token is left out, because only running it gives its logits. What goes on
        differently stays for others; what is a beginning is handed over.

        Args:
            prompt: how many of the tokens, from the first on, are the run's prompt.
            family: handles of the run and of the one that it branched from.
        """
        wanted = np.array(token_ids, np.int64)
        best, shared = None, 0
        for held in self._alike(_openings(wanted, prompt, len(wanted) - 1)):
            serves = held.serves(wanted, prompt, family)
            if serves > shared:
                best, shared = held, serves
        if best is None:
            return None
        self._held.move_to_end(best)
        if shared == len(best.token_ids):
            self._drop(best)
        return best.parked, shared

    def shrink(self, nbytes: float) -> None:
        """Give up caches until they hold at most `nbytes`."""
        while self._held and self.nbytes > nbytes:
            self._drop(next(iter(self._held)))

    def _alike(self, keys: list[tuple[int, bytes]]) -> list[_Held]:
        return list(dict.fromkeys(held for key in keys for held in self._openings.get(key, ())))

    def _keys(self, held: _Held) -> list[tuple[int, bytes]]:
        return _openings(held.token_ids, held.parked.prompt, len(held.token_ids))

    def _drop(self, held: _Held) -> None:
        del self._held[held]
        self.nbytes -= held.nbytes
        for key in self._keys(held):
            self._openings[key].remove(held)
            if not self._openings[key]:
                del self._openings[key]


def _openings(token_ids: np.ndarray, prompt: int, length: int) -> list[tuple[int, bytes]]:
    """How the first `length` of these tokens begin: the whole prompt, and its first chunk."""
    keys = []
    if prompt <= length:
        keys.append((prompt, token_ids[:prompt].tobytes()))
    if min(prompt, length) >= kv_cache.CHUNK:
        keys.append((-1, token_ids[: kv_cache.CHUNK].tobytes()))
    return keys


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    length = min(len(a), len(b))
    differ = np.asarray(a[:length], np.int64) != np.asarray(b[:length], np.int64)
    return int(differ.argmax()) if differ.any() else length
