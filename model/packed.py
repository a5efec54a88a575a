"""Packed passes: the new tokens of many rows go through the model together, behind each other.

To the model they are one long sequence with positions of its own choosing, so that no model code is
copied and nothing is padded: only attention, which it asks transformers' registry for, and the
cache know whose token is whose (the idea of Orca, Yu et al. 2022, and of transformers' own paged
attention). A token attends to the keys of its own row, read where they are.

How a token is computed does not depend on who else is there: prompts attend by whole chunks, other
tokens one by one, and masked places count as exact zeros. Where the matrix products keep rows apart
too (`model.packed_linear`), the same request yields the same bits in any company.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from . import kv_cache
from .kv_cache import GRAIN, Bank, Layout, Slot

NAME = "packed_rows"  # of the attention, in transformers' registry
# What is tried out: lengths of a row, spans (the longest neighbour's), and how many neighbours.
LENGTHS = (3, GRAIN + 2, 3 * GRAIN + 60, 500)
SPANS = tuple(GRAIN * n for n in (1, 2, 3, 4, 8, 12))
TRIED_ROWS = 4
UNKNOWN = ("softcap", "s_aux", "position_bias")  # what other attentions do with these isn't done


class NotPacked(Exception):
    """The model wants something of its attention that packed passes don't do."""


class Single:
    """Tokens that attend one by one: of neighbouring rows of a bank, or several of one row.

    Attributes:
        start, end: their place in the pass.
        positions: of each in its row. *Shape:* (n,)
    """

    def __init__(
        self, start: int, bank: Bank, first: int, positions: Sequence[int], one_row: bool
    ) -> None:
        self.start, self.end = start, start + len(positions)
        self.bank, self.one_row = bank, one_row
        rows = [first] * len(positions) if one_row else range(first, first + len(positions))
        device = bank.layers[0][0].device
        self._rows = slice(first, first + 1) if one_row else slice(first, first + len(positions))
        self._where = torch.tensor(list(rows), device=device)
        self.positions = torch.tensor(positions, device=device)
        self._span = _span(max(positions) + 1)
        self._masks: dict[int | None, torch.Tensor] = {}

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """*Shape:* (heads, tokens of the whole pass, size)"""
        for kept, new in zip(self.bank.layers[layer], (keys, values), strict=True):
            kept[self._where, :, self.positions] = new[:, self.start : self.end].transpose(0, 1)

    def attend(
        self, layer: int, query: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """*Shape:* (heads, tokens of the whole pass, size) → (n, heads, size)"""
        keys, values = (kept[self._rows, :, : self._span] for kept in self.bank.layers[layer])
        n = self.end - self.start
        if self.one_row:
            keys, values = (kept.expand(n, -1, -1, -1).contiguous() for kept in (keys, values))
        # Query heads that share a key-value head are that head's queries.
        asked = query[:, self.start : self.end].unflatten(0, (keys.shape[1], -1))
        asked = asked.permute(2, 0, 1, 3).contiguous()
        if window not in self._masks:
            mask = _seen(self.positions, self._span, window)
            self._masks[window] = mask[:, None, None, :]
        return _weighed(asked, keys, values, self._masks[window], scale).flatten(1, 2)


class Chunk:
    """Neighbouring prompt tokens of one row within one chunk; they attend together.

    Attributes:
        start, end: their place in the pass.
        first: position of the first one in its row.
    """

    def __init__(self, start: int, slot: Slot, first: int, count: int) -> None:
        self.start, self.end, self.first = start, start + count, first
        self._bank, self._row = slot.bank, slot.row
        self._span = _span(first + count)
        self._masks: dict[int | None, torch.Tensor] = {}

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """*Shape:* (heads, tokens of the whole pass, size)"""
        end = self.first + self.end - self.start
        for kept, new in zip(self._bank.layers[layer], (keys, values), strict=True):
            kept[self._row, :, self.first : end] = new[:, self.start : self.end]

    def attend(
        self, layer: int, query: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        """*Shape:* (heads, tokens of the whole pass, size) → (n, heads, size)"""
        keys, values = (kept[self._row, :, : self._span] for kept in self._bank.layers[layer])
        count, heads = self.end - self.start, keys.shape[0]
        asked = query[:, self.start : self.end].reshape(heads, -1, query.shape[-1])
        if window not in self._masks:
            positions = torch.arange(self.first, self.first + count, device=query.device)
            mask = _seen(positions, self._span, window)
            self._masks[window] = mask.repeat(asked.shape[1] // count, 1)
        found = scaled_dot_product_attention(
            asked[None], keys[None], values[None], attn_mask=self._masks[window], scale=scale
        )
        return found[0].reshape(query.shape[0], count, -1).transpose(0, 1)


class PackedPass(Cache):
    """One pass: takes the place of the cache in the model's eyes.

    Attributes:
        token_ids, positions: of all rows, packed.
        places: for each feed, where its tokens are.
    """

    def __init__(self, feeds: Sequence[tuple[Sequence[int], Slot]], least: int = 1) -> None:
        """
        Args:
            feeds: new tokens of each row and where they go; there is room for them.
            least: tokens that the pass has at least; more are made up and nobody sees them.
        """
        super().__init__(layers=[])
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.places = [range(0)] * len(feeds)
        self._groups: list[Single | Chunk] = []
        self._layer = 0
        self.attended = 0  # layers whose attention was asked for
        lone = [i for i, (ids, slot) in enumerate(feeds) if len(ids) == 1 and _single(slot)]
        for group in _neighbours(feeds, lone):
            start, first = len(self.token_ids), feeds[group[0]][1]
            for i in group:
                self._place(i, *feeds[i])
            positions = self.positions[start:]
            self._groups.append(Single(start, first.bank, first.row, positions, False))
        for i in sorted(set(range(len(feeds))).difference(lone)):
            self._place(i, *feeds[i])
            self._groups.extend(_pieces(self.places[i], feeds[i][1]))
        for _ in range(least - len(self.token_ids)):
            self.token_ids.append(self.token_ids[0])
            self.positions.append(self.positions[0])

    def _place(self, which: int, ids: Sequence[int], slot: Slot) -> None:
        start = len(self.token_ids)
        self.token_ids.extend(ids)
        self.positions.extend(range(slot.length, slot.length + len(ids)))
        self.places[which] = range(start, len(self.token_ids))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are given; nobody needs to count."""
        return 0

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write what is new. *Shape:* (1, heads, tokens, size) each"""
        self._layer = layer_idx
        for group in self._groups:
            group.write(layer_idx, keys[0], values[0])
        return keys, values

    def attend(self, query: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        """Every token to its own row. *Shape:* (1, heads, tokens, size) → (1, tokens, heads, size)

        What was made up attends to nothing.
        """
        self.attended += 1
        found = [group.attend(self._layer, query[0], scale, window) for group in self._groups]
        extra = query.shape[2] - sum(len(place) for place in self.places)
        if extra:
            found.append(found[0].new_zeros(extra, *found[0].shape[1:]))
        return (found[0] if len(found) == 1 else torch.cat(found))[None]


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: PackedPass | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What the model calls for its attention; the keys and values are those of the new tokens.

    Raises:
        NotPacked: the model wants something else of it.
    """
    odd = [name for name in UNKNOWN if options.get(name) is not None]
    if packed is None or attention_mask is not None or odd or not getattr(module, "is_causal", 1):
        raise NotPacked(f"{type(module).__name__} {odd}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return packed.attend(query, scale, sliding_window), None


AttentionInterface.register(NAME, attention)


def _single(slot: Slot) -> bool:
    """Whether the next token of this row attends on its own: it isn't of the prompt."""
    return slot.length >= slot.prompt


def _neighbours(feeds: Sequence[tuple[Any, Slot]], which: list[int]) -> Iterator[list[int]]:
    """Those of the rows, in groups that are side by side in a bank."""
    by_bank: dict[int, list[int]] = {}
    for i in which:
        by_bank.setdefault(id(feeds[i][1].bank), []).append(i)
    for rows in by_bank.values():
        rows.sort(key=lambda i: feeds[i][1].row)
        group: list[int] = []
        for i in rows:
            if group and feeds[group[-1]][1].row + 1 != feeds[i][1].row:
                yield group
                group = []
            group.append(i)
        yield group


def _pieces(place: range, slot: Slot) -> Iterator[Single | Chunk]:
    """The new tokens of one row as they attend: the prompt's by chunks, the rest one by one."""
    start, position, chunk = place.start, slot.length, kv_cache.CHUNK
    while start < place.stop and position < slot.prompt:
        end = min((position // chunk + 1) * chunk, slot.prompt)
        count = min(end - position, place.stop - start)
        yield Chunk(start, slot, position, count)
        start, position = start + count, position + count
    if start < place.stop:
        positions = range(position, position + place.stop - start)
        yield Single(start, slot.bank, slot.row, positions, True)


def _weighed(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of a few queries a row. *Shape:* (rows, heads, n, size), (rows, heads, span, size)

    In fp32 on the CPU written out: the fused kernel is slower there, and what it makes of a row
    depends on the thread that it falls to, whose working memory may be aligned otherwise. (In 16
    bits that hardly ever shows, once in a thousand steps.) Values are added up grain by grain: a
    product over the whole span would be cut at places that depend on how long the span is, and
    that is the longest neighbour's.
    """
    if query.device.type != "cpu" or query.dtype != torch.float32:
        return scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scale)
    scores = torch.matmul(query, keys.transpose(-1, -2)).mul_(scale)
    scores.masked_fill_(seen.logical_not(), -torch.inf)
    weights, values = torch.softmax(scores, -1).flatten(0, 1), values.flatten(0, 1)
    found = torch.bmm(weights[..., :GRAIN], values[:, :GRAIN])
    for start in range(GRAIN, values.shape[1], GRAIN):
        grain = slice(start, start + GRAIN)
        found.baddbmm_(weights[..., grain], values[:, grain])
    return found.unflatten(0, query.shape[:2])


@torch.inference_mode()
def keeps_apart(layout: Layout, queries: int) -> bool:
    """Whether attention makes the same of a row, to the last bit, whoever its neighbours are.

    That is up to the machine's matrix products, so it is tried out: a row of each length alone,
    and beside others when the longest of them is longer.

    Args:
        queries: of a token in a layer, all heads together.
    """
    noise = torch.Generator().manual_seed(0)
    for heads, k, v in set(layout.layers):
        keys, values, asked = (
            torch.randn(shape, generator=noise).to(layout.device, layout.dtype)
            for shape in (
                (TRIED_ROWS, heads, SPANS[-1], k),
                (TRIED_ROWS, heads, SPANS[-1], v),
                (TRIED_ROWS, heads, max(1, queries // heads), k),
            )
        )
        for length in LENGTHS:
            made = []
            for span in (span for span in SPANS if span >= length):
                seen = (torch.arange(span, device=keys.device) < length)[None, None, None]
                made += [
                    _weighed(asked[:n], keys[:n, :, :span], values[:n, :, :span], seen, k**-0.5)[0]
                    for n in (1, TRIED_ROWS)
                ]
            if not all(torch.equal(made[0], other) for other in made):
                return False
    return True


def _span(tokens: int) -> int:
    """Places that are looked at for so many tokens; the number never shows in the result."""
    return -(-tokens // GRAIN) * GRAIN


def _seen(positions: torch.Tensor, span: int, window: int | None) -> torch.Tensor:
    """Which keys a token at each position attends to. *Shape:* (n,) → (n, span) bool"""
    distance = positions[:, None] - torch.arange(span, device=positions.device)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)
