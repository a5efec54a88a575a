"""The KV cache: attention keys and values of earlier tokens, kept instead of computed again.

`Slot` holds those of one row. `Kept` holds slots whose run is over, so that a run that continues,
branches or repeats it starts from there.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

CHUNK = 256  # prompt tokens run in one step, so that a long prompt can be stopped on its way
ROOM = 64  # a full buffer grows by this many tokens or by an eighth, whichever is more


def roomy(length: int) -> int:
    """Tokens for which a buffer is made that must hold `length`."""
    return length + max(ROOM, length // 8)


def longest(room: int) -> int:
    """The most tokens for which `roomy` makes a buffer of at most so many."""
    eighths = 8 * (room // 9) + min(room % 9, 7)
    return max(0, min(room - ROOM, eighths))


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer in a buffer with room to spare.

    transformers' own dynamic layer copies everything it holds at every step; this one copies only
    when the buffer is full, which is seldom.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.device = key_states.device
        self._buffers = tuple(
            s.new_empty((*s.shape[:2], 0, s.shape[3])) for s in (key_states, value_states)
        )
        self._show(0)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append. *Shape:* (1, heads, new, head_dim) each; returns all of them, old and new."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.keys.shape[2]
        end = start + key_states.shape[2]
        if end > self._buffers[0].shape[2]:
            self._grow(end)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self._show(end)
        return self.keys, self.values

    def truncate(self, length: int) -> None:
        if self.is_initialized and length < self.keys.shape[2]:
            self._show(length)

    def copy(self, length: int) -> GrowingLayer:
        """The first `length` tokens, in a buffer of their own."""
        twin = GrowingLayer()
        if self.is_initialized:
            twin.update(self.keys[:, :, :length], self.values[:, :, :length])
        return twin

    def nbytes(self) -> int:
        return sum(b.nbytes for b in self._buffers) if self.is_initialized else 0

    def _show(self, length: int) -> None:
        self.keys, self.values = (b[:, :, :length] for b in self._buffers)

    def _grow(self, end: int) -> None:
        length = self.keys.shape[2]
        capacity = roomy(end)
        grown = []
        for buffer in self._buffers:
            bigger = buffer.new_empty((*buffer.shape[:2], capacity, buffer.shape[3]))
            bigger[:, :, :length] = buffer[:, :, :length]
            grown.append(bigger)
        self._buffers = tuple(grown)
        self._show(length)


class Slot:
    """The KV cache of one row.

    All layers keep every token, also in models with sliding windows (their masks hide what is too
    old), so that any slot can be cut back to any length.

    Attributes:
        prompt: how many tokens at the beginning are a run's prompt.
        exact: how many at the beginning were run as every run with this prompt runs them, down to
            the last bit: the prompt `CHUNK` by `CHUNK`, those behind it one at a time.
    """

    def __init__(self, prompt: int = 0) -> None:
        self.prompt, self.exact = prompt, 0
        self.cache = Cache(layer_class_to_replicate=GrowingLayer)

    @property
    def length(self) -> int:
        """Tokens whose keys and values are held."""
        return self.cache.get_seq_length()

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes() for layer in self.cache.layers)

    def piece(self, unfed: int) -> int:
        """How many of so many tokens the next pass should take: the prompt stays apart."""
        left = self.prompt - self.length
        return min(unfed, CHUNK, left) if left > 0 else min(unfed, CHUNK)

    def note(self, count: int) -> None:
        """The next `count` tokens come in one pass."""
        start = self.length
        usual = self.piece(self.prompt) if start < self.prompt else 1
        if self.exact == start and count == usual:
            self.exact += count

    def trim(self, length: int) -> None:
        """Forget all tokens from `length` on, and the room that they took."""
        self.truncate(length)
        for i, layer in enumerate(self.cache.layers):  # one after the other, for the memory's sake
            self.cache.layers[i] = layer.copy(length)

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.exact = min(self.exact, length)
        for layer in self.cache.layers:
            layer.truncate(length)

    def fork(self, length: int | None = None) -> Slot:
        """A slot of its own with the first `length` (all) tokens of this one."""
        length = self.length if length is None else length
        twin = Slot(self.prompt)
        twin.exact = min(self.exact, length)
        twin.cache.layers = [layer.copy(length) for layer in self.cache.layers]
        return twin


@dataclass(eq=False)
class _Held:
    """A kept slot, the tokens that it holds (int64), and the run that it was of."""

    token_ids: np.ndarray
    slot: Slot
    owner: str | None
    nbytes: int

    def serves(self, wanted: np.ndarray, prompt: int, family: Collection[str | None]) -> int:
        """For how many tokens of the beginning of `wanted`; see `Kept`."""
        alike = min(common(self.token_ids, wanted), len(wanted) - 1)
        if self.owner not in family:
            alike = min(alike, self.slot.exact)
        if self.slot.prompt == prompt <= alike:
            return alike
        return min(alike, self.slot.prompt, prompt) // CHUNK * CHUNK

    def within(self, other: _Held) -> bool:
        """Whether the other one serves for all that this one does."""
        length = len(self.token_ids)
        instead = self.owner == other.owner and self.slot.exact <= other.slot.exact
        return (
            self.slot.prompt == other.slot.prompt
            and (instead or length <= other.slot.exact)
            and common(self.token_ids, other.token_ids) == length
        )


class Kept:
    """Slots of runs that are over, least recently used given up first.

    Keys and values of one token differ in their last bits with the number of tokens that are run
    together. So that a result never depends on what others asked before, a slot serves where they
    were run as they would be now: behind a prompt of the same length all of it that is `exact`,
    else whole chunks of the prompt. What a run ran in its own way (several tokens a pass) serves
    itself and its branches.

    Attributes:
        nbytes: of all slots.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._held: OrderedDict[_Held, None] = OrderedDict()
        # By how they begin: a slot that can serve shares a whole prompt or a first chunk.
        self._openings: dict[tuple[int, bytes], list[_Held]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, token_ids: Sequence[int], slot: Slot, owner: str | None = None) -> None:
        """Keep a slot that holds the first `slot.length` of `token_ids`.

        Where another one serves for all that it does, that one is kept instead.

        Args:
            owner: handle of the run whose slot it was.
        """
        held = _Held(np.array(token_ids[: slot.length], np.int64), slot, owner, slot.nbytes)
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
        self,
        token_ids: Sequence[int],
        prompt: int,
        family: Collection[str | None] = (),
        nbytes: float = math.inf,
    ) -> Slot:
        """The slot that serves for most of the beginning of `token_ids`, cut to that.

        At least the last token is left out, because only running it gives its logits. A slot that
        goes on differently stays for others and is copied; one that is a beginning is handed over.

        Args:
            prompt: how many of the tokens, from the first on, are the run's prompt.
            family: handles of the run and of the one that it branched from.
            nbytes: what all others may hold then; who doesn't fit in is given up before a copy is
                made, this slot's own original last.
        """
        wanted = np.array(token_ids, np.int64)
        best, shared = None, 0
        for held in self._alike(_openings(wanted, prompt, len(wanted) - 1)):
            serves = held.serves(wanted, prompt, family)
            if serves > shared:
                best, shared = held, serves
        if best is None:
            self.shrink(nbytes)
            return Slot(prompt)
        self._held.move_to_end(best)
        if shared == len(best.token_ids):
            self._drop(best)
        self.shrink(nbytes)
        slot = best.slot
        if best in self._held:
            slot = slot.fork(shared)
        elif shared < len(best.token_ids):
            slot.trim(shared)
        slot.prompt = prompt
        return slot

    def shrink(self, nbytes: float) -> None:
        """Give up slots until they hold at most `nbytes`."""
        while self._held and self.nbytes > nbytes:
            self._drop(next(iter(self._held)))

    def _alike(self, keys: list[tuple[int, bytes]]) -> list[_Held]:
        return list(dict.fromkeys(held for key in keys for held in self._openings.get(key, ())))

    def _keys(self, held: _Held) -> list[tuple[int, bytes]]:
        return _openings(held.token_ids, held.slot.prompt, len(held.token_ids))

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
    if min(prompt, length) >= CHUNK:
        keys.append((-1, token_ids[:CHUNK].tobytes()))
    return keys


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    length = min(len(a), len(b))
    differ = np.asarray(a[:length], np.int64) != np.asarray(b[:length], np.int64)
    return int(differ.argmax()) if differ.any() else length
