"""The KV cache: attention keys and values of earlier tokens, kept instead of computed again.

All sequences share one, `Slots`: a `Slot` is the place of one row in it. Slots of the same capacity
lie side by side in a `Bank`, so that many rows attend to their keys in one operation. `Parked` is
what a slot held, in memory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CHUNK = 64  # tokens of a prompt that are run together
GRAIN = 128  # tokens: capacities are multiples of it, and attention adds up so many at a time
MOST_ROWS = 32  # of a bank,
BANK_TOKENS = 4096  # as long as they hold no more than this together


def capacity(tokens: int) -> int:
    """The smallest size of a slot that holds so many tokens: eight sizes an octave.

    Few sizes let rows share banks; the next one is never more than an eighth larger, or a grain.
    """
    unit = _unit(tokens)
    return max(1, -(-tokens // unit)) * unit


def longest(room: int) -> int:
    """The largest capacity that is at most `room`; 0 where there is none."""
    unit = _unit(room)
    return room // unit * unit


def _unit(tokens: int) -> int:
    """What a capacity for so many tokens is a multiple of."""
    return max(GRAIN, (1 << (max(tokens - 1, 1).bit_length() - 1)) // 8)


@dataclass(frozen=True)
class Layout:
    """What the model keeps of one token.

    Attributes:
        layers: of each layer the number of key-value heads and the sizes of a key and of a value.
    """

    layers: tuple[tuple[int, int, int], ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return sum(heads * (k + v) for heads, k, v in self.layers) * self.dtype.itemsize

    def zeros(self, rows: int, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer. *Shape:* (rows, heads, tokens, size)

        Zeros, since what is masked must still be finite.
        """
        options = {"dtype": self.dtype, "device": self.device}
        return [
            tuple(torch.zeros(rows, heads, tokens, size, **options) for size in (k, v))
            for heads, k, v in self.layers
        ]


class Bank:
    """Slots of one capacity, side by side.

    Attributes:
        layers: keys and values of each layer. *Shape:* (rows, heads, capacity, size)
        slots: who has which row; the first rows are the ones in use.
        written: how many tokens of each row may be other than zeros.
    """

    def __init__(self, layout: Layout, capacity: int, rows: int) -> None:
        self.capacity, self.rows = capacity, rows
        self.layers = layout.zeros(rows, capacity)
        self.slots: list[Slot] = []
        self.written = [0] * rows

    @property
    def unused(self) -> int:
        """Rows that nobody has."""
        return self.rows - len(self.slots)

    def tighten(self) -> None:
        """Give back the memory of rows that nobody has."""
        self.rows = len(self.slots)
        del self.written[self.rows :]
        for i, layer in enumerate(self.layers):  # one after the other, for the memory's sake
            self.layers[i] = tuple(states[: self.rows].clone() for states in layer)

    def clear(self, row: int) -> None:
        """Zeros again: what somebody left may not be finite, and is read though it is masked."""
        for states in (states for layer in self.layers for states in layer):
            states[row, :, : self.written[row]] = 0
        self.written[row] = 0


@dataclass(frozen=True)
class Parked:
    """What a slot held, copied: keys and values of its first `length` tokens.

    Attributes:
        layers: *Shape:* (heads, length, size) each
        prompt, exact: as of the `Slot`.
    """

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    length: int
    prompt: int
    exact: int

    @property
    def nbytes(self) -> int:
        return sum(k.nbytes + v.nbytes for k, v in self.layers)


class Slot:
    """The KV cache of one row.

    All layers keep every token, also in models with sliding windows (their masks hide what is too
    old), so that any slot can be cut back to any length.

    Attributes:
        bank, row: where it is; both change when the cache is tidied up. Given back it has no bank.
        length: tokens whose keys and values are held.
        prompt: how many tokens at the beginning are a run's prompt.
        exact: how many at the beginning were run as every run with this prompt runs them, down to
            the last bit.
    """

    def __init__(self, slots: Slots, bank: Bank, row: int, prompt: int) -> None:
        self.slots, self.bank, self.row = slots, bank, row
        self.prompt, self.length, self.exact = prompt, 0, 0

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, room to spare included. *Shape:* (heads, capacity, size)"""
        keys, values = self.bank.layers[index]
        return keys[self.row], values[self.row]

    def piece(self, unfed: int, allowance: int) -> int:
        """How many of so many tokens the next pass should take: whole chunks of the prompt.

        Args:
            allowance: about how many tokens the pass may take of this row.
        """
        allowance = allowance if self.slots.packed else CHUNK
        left = self.prompt - self.length
        if left <= 0:
            return min(unfed, max(allowance, CHUNK))
        whole = max(allowance // CHUNK, 1) * CHUNK
        return min(unfed, left, whole - self.length % CHUNK)

    def advance(self, count: int) -> None:
        """A pass has written the keys and values of `count` more tokens."""
        start, end = self.length, self.length + count
        if self.slots.packed:  # attention knows chunks and single tokens, however many come
            usual = end >= self.prompt or end % CHUNK == 0
        elif start < self.prompt:
            usual = count == min(CHUNK, self.prompt - start)
        else:
            usual = count == 1
        if self.exact == start and usual:
            self.exact = end
        self.length = end

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.length = min(self.length, length)
        self.exact = min(self.exact, length)

    def reserve(self, tokens: int) -> None:
        """So many tokens are about to be there: move to a larger slot where this can't hold them.

        Raises:
            RuntimeError, MemoryError: the machine has no memory for it.
        """
        if tokens > self.bank.capacity:
            self._move(tokens)
        self._mark(tokens)

    def _move(self, tokens: int) -> None:
        larger = self.slots.take(tokens, self.prompt)
        _copy(self, larger, self.length)
        old = self.bank, self.row
        self.bank, self.row = larger.bank, larger.row
        self.bank.slots[self.row] = self
        larger.bank, larger.row = old
        larger.bank.slots[larger.row] = larger
        larger.release()

    def _mark(self, tokens: int) -> None:
        """Its first `tokens` places may be written to."""
        self.bank.written[self.row] = max(self.bank.written[self.row], tokens)

    def fork(self, length: int | None = None) -> Slot:
        """Another slot with the first `length` (all) tokens of this one."""
        twin = self.slots.take(self.bank.capacity, self.prompt)
        twin.length = self.length if length is None else length
        twin.exact = min(self.exact, twin.length)
        _copy(self, twin, twin.length)
        return twin

    def park(self) -> Parked:
        """A copy of what it holds."""
        rows = (self.layer(i) for i in range(len(self.bank.layers)))
        layers = tuple((k[:, : self.length].clone(), v[:, : self.length].clone()) for k, v in rows)
        return Parked(layers, self.length, self.prompt, self.exact)

    def load(self, parked: Parked, length: int) -> None:
        """Take over the first `length` tokens of what was parked."""
        self._mark(length)
        for i, held in enumerate(parked.layers):
            for mine, theirs in zip(self.layer(i), held, strict=True):
                mine[:, :length] = theirs[:, :length]
        self.length, self.exact = length, min(parked.exact, length)

    def release(self) -> None:
        """Give the place back."""
        self.slots.release(self)


class Slots:
    """The KV cache that all rows share.

    Args:
        layout: what a token needs.
        packed: whether passes run rows of any number of tokens as if one by one (`model.packed`).

    Attributes:
        used: bytes of all slots.
        unused: bytes of the other rows of their banks.
        spare: bytes that such rows may take.
    """

    def __init__(self, layout: Layout, packed: bool) -> None:
        self.layout, self.packed = layout, packed
        self._banks: dict[int, list[Bank]] = {}
        self.used = self.unused = self.spare = 0

    def take(self, tokens: int, prompt: int = 0) -> Slot:
        """An empty slot with room for so many tokens.

        Raises:
            RuntimeError, MemoryError: the machine has no memory for it.
        """
        size = capacity(tokens)
        banks = self._banks.setdefault(size, [])
        if not banks or not banks[-1].unused:
            banks.append(Bank(self.layout, size, self._rows(size)))
        bank = banks[-1]
        slot = Slot(self, bank, len(bank.slots), prompt)
        bank.clear(slot.row)
        bank.slots.append(slot)
        self._count()
        return slot

    def release(self, slot: Slot) -> None:
        """The last row of the same capacity moves into its place, so that rows stay dense."""
        banks = self._banks[slot.bank.capacity]
        last = banks[-1].slots.pop()
        if last is not slot:
            slot.bank.clear(slot.row)
            _copy(last, slot, last.length)
            last.bank, last.row = slot.bank, slot.row
            last.bank.slots[last.row] = last
        if not banks[-1].slots:
            banks.pop()
        slot.bank = None  # whoever still knows the slot keeps no memory with it
        self._count()

    def tighten(self, nbytes: int) -> None:
        """Have rows that nobody uses take so many bytes at most."""
        for bank in [bank for banks in self._banks.values() for bank in banks if bank.unused]:
            if self.unused <= nbytes:
                break
            bank.tighten()
            self._count()

    def forget(self) -> None:
        """Give up everything; slots that are out are void."""
        self._banks = {}
        self._count()

    def _rows(self, size: int) -> int:
        more = (self.spare - self.unused) // (size * self.layout.bytes_per_token)
        return max(1, min(MOST_ROWS, BANK_TOKENS // size, 1 + more))

    def _count(self) -> None:
        banks = [bank for banks in self._banks.values() for bank in banks]
        each = self.layout.bytes_per_token
        self.used = sum(bank.capacity * len(bank.slots) for bank in banks) * each
        self.unused = sum(bank.capacity * bank.unused for bank in banks) * each


def _copy(source: Slot, target: Slot, length: int) -> None:
    target._mark(length)
    for i in range(len(source.bank.layers)):
        for theirs, mine in zip(source.layer(i), target.layer(i), strict=True):
            mine[:, :length] = theirs[:, :length]
