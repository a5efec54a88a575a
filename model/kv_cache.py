"""The KV cache: attention keys and values of earlier tokens, kept instead of computed again.

`Slot` holds those of one row. `Kept` holds slots whose run is over, so that a run that continues,
branches or repeats it starts from there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, DynamicLayer

CHUNK = 256  # prompt tokens run in one step, so that a long prompt can be stopped on its way
ROOM = 64  # a full buffer grows by this many tokens or by an eighth, whichever is more


def roomy(length: int) -> int:
    """Tokens for which a buffer is made that must hold `length`."""
    return length + max(ROOM, length // 8)


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
        prompt: how many tokens at the beginning are a run's prompt, computed `CHUNK` by `CHUNK`;
            those behind came one step at a time.
    """

    def __init__(self, prompt: int = 0) -> None:
        self.prompt = prompt
        self.cache = Cache(layer_class_to_replicate=GrowingLayer)

    @property
    def length(self) -> int:
        """Tokens whose keys and values are held."""
        return self.cache.get_seq_length()

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes() for layer in self.cache.layers)

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        for layer in self.cache.layers:
            layer.truncate(length)

    def fork(self, length: int | None = None) -> Slot:
        """A slot of its own with the first `length` (all) tokens of this one."""
        twin = Slot(self.prompt)
        twin.cache.layers = [
            layer.copy(self.length if length is None else length) for layer in self.cache.layers
        ]
        return twin


class Kept:
    """Slots of runs that are over, least recently used given up first.

    Keys and values of one token differ in their last bits with the number of tokens that are run
    together. So that a result never depends on what others asked before, a slot serves where they
    were run as they would be now: behind a prompt of the same length all of it, else whole chunks
    of the prompt.
    """

    def __init__(self) -> None:
        self._slots: OrderedDict[tuple[int, tuple[int, ...]], Slot] = OrderedDict()

    @property
    def nbytes(self) -> int:
        slots = list(self._slots.values())  # a copy: other threads ask while the loop changes them
        return sum(slot.nbytes for slot in slots)

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, token_ids: Sequence[int], slot: Slot) -> None:
        """Keep a slot that holds the first `slot.length` of `token_ids`."""
        if slot.length:
            held = slot.prompt, tuple(token_ids[: slot.length])
            self._slots[held] = slot
            self._slots.move_to_end(held)

    def take(self, token_ids: Sequence[int], prompt: int) -> Slot:
        """The slot that serves for most of the beginning of `token_ids`, cut to that.

        The first `prompt` of them are the run's prompt.

        At least the last token is left out, because only running it gives its logits. A slot that
        goes on differently stays for others and is copied; one that is a beginning is handed over.
        """
        wanted = tuple(token_ids)
        best, shared = None, 0
        for key in self._slots:
            its_prompt, held = key
            alike = min(common(held, wanted), len(wanted) - 1)
            if not its_prompt == prompt <= alike:
                alike = min(alike, its_prompt, prompt) // CHUNK * CHUNK
            if alike > shared:
                best, shared = key, alike
        if best is None:
            return Slot(prompt)
        if shared < len(best[1]):
            self._slots.move_to_end(best)
            slot = self._slots[best].fork(shared)
        else:
            slot = self._slots.pop(best)
        slot.prompt = prompt
        return slot

    def shrink(self, nbytes: int) -> None:
        """Give up slots until they hold at most `nbytes`."""
        while self._slots and self.nbytes > nbytes:
            self._slots.popitem(last=False)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
