"""Processors that cut improbable tokens: top-k, top-p, min-p, typical-p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from . import ranges
from .errors import FieldError
from .processor import Rowwise
from .scores import HEAD, likeliest, mass, only, rounding, weighed


@dataclass(frozen=True, slots=True)
class TopK(Rowwise):
    """Keeps the k largest scores, and those equal to the k-th (arXiv:1805.04833)."""

    name: ClassVar[str] = "top_k"
    cuts: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    top_k: int

    def __post_init__(self) -> None:
        ranges.whole("top_k", self.top_k, 1, ranges.ENDLESS)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        if self.top_k >= scores.size:
            return scores
        ids = likeliest(scores, self.top_k)
        if ids.size < self.top_k:
            return scores
        ordered = scores[ids]
        return only(scores, ids[ordered >= ordered[self.top_k - 1]])


@dataclass(frozen=True, slots=True)
class TopP(Rowwise):
    """Keeps the smallest set of likeliest tokens that holds the mass p (arXiv:1904.09751).

    The likeliest one always stays, so p = 0 is greedy. transformers removes, from the least likely
    up, while the float32 cumulative mass is at most 1 − p; `kept` follows the same border from the
    other end in float64 and asks `kept_by_sort` where the two could round apart.
    """

    name: ClassVar[str] = "top_p"
    cuts: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    top_p: float

    def __post_init__(self) -> None:
        ranges.number("top_p", self.top_p, 0, 1)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        ids, count = self.kept(scores)
        if count is None:
            count = self.kept_by_sort(scores)
            ids = ids if ids.size >= count else likeliest(scores, count)
        return only(scores, ids[:count])

    def kept(self, scores: np.ndarray) -> tuple[np.ndarray, int | None]:
        """The likeliest ids in order, and how many stay; None where only the sort can tell."""
        ids = likeliest(scores, HEAD)
        if scores.size <= 2 * HEAD:
            return ids, None  # here the sort costs next to nothing
        top = scores[ids[0]]
        weights = weighed(scores, ids, top)
        complete = ids.size < HEAD
        total = weights.sum() if complete else mass(scores, top)
        above = (np.cumsum(weights) - weights) / total  # what the tokens before each one hold
        count = max(int(np.searchsorted(above, self.top_p)), 1)
        if count == ids.size and not complete:
            return ids, None
        margin = (1 - self.top_p) * rounding(scores.size) + 1e-6
        border = above[max(count - 1, 1) : count + 1]  # the first token stays in any case
        return ids, None if (np.abs(border - self.top_p) < margin).any() else count

    def kept_by_sort(self, scores: np.ndarray) -> int:
        """How many tokens stay, by transformers' own arithmetic on the sorted scores."""
        ascending = torch.from_numpy(np.sort(scores))
        below = ascending.softmax(dim=-1).cumsum(dim=-1).numpy()
        return max(int(np.count_nonzero(below > np.float32(1 - self.top_p))), 1)


@dataclass(frozen=True, slots=True)
class MinP(Rowwise):
    """Keeps the tokens at least `min_p` times as likely as the likeliest (arXiv:2407.01082)."""

    name: ClassVar[str] = "min_p"
    cuts: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    min_p: float

    def __post_init__(self) -> None:
        ranges.number("min_p", self.min_p, 0, 1)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        # min_p <= 1, so the likeliest token is never below its own share.
        probs = torch.from_numpy(scores).softmax(dim=-1).numpy()
        kept = probs >= np.float32(self.min_p) * probs.max()
        return only(scores, np.flatnonzero(kept))


@dataclass(frozen=True, slots=True)
class TypicalP(Rowwise):
    """Keeps the tokens whose surprise is nearest to the expected one, up to a mass.

    Surprise is −ln p, the expected one the entropy (arXiv:2202.00666). The likeliest token may go.
    As in `TopP` the border is found among the nearest tokens in float64, and by the whole order,
    in transformers' arithmetic, where rounding could decide.
    """

    name: ClassVar[str] = "typical_p"
    cuts: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = False
    mass: float

    def __post_init__(self) -> None:
        ranges.number("typical_p", self.mass, 0, 1, above=True)
        if self.mass == 1:
            raise FieldError("typical_p", self.mass, "a number above 0 and below 1")

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        logprobs = torch.from_numpy(scores).log_softmax(dim=-1)
        entropy = -(logprobs * logprobs.exp()).nansum()  # 0 · −inf counts as 0
        distance = (-logprobs - entropy).abs_().numpy()
        limit = self.limit(scores, distance)
        if limit is None:
            limit = self.limit_by_sort(scores, distance)
        return only(scores, np.flatnonzero(distance <= limit))

    def limit(self, scores: np.ndarray, distance: np.ndarray) -> float | None:
        """The largest distance that stays; None where only the sort can tell."""
        if scores.size <= 2 * HEAD:
            return None
        ids = likeliest(-distance, HEAD)
        top = scores.max()
        within = np.cumsum(weighed(scores, ids, top)) / mass(scores, top)
        last = int(np.searchsorted(within, self.mass))
        if last == ids.size:
            return None
        margin = self.mass * rounding(scores.size) + 1e-6
        border = within[max(last - 1, 0) : last + 1]
        return None if (np.abs(border - self.mass) < margin).any() else distance[ids[last]]

    def limit_by_sort(self, scores: np.ndarray, distance: np.ndarray) -> float:
        """The same by transformers' own arithmetic on the whole order."""
        order = likeliest(-distance, scores.size)
        order = np.concatenate([order, np.flatnonzero(distance == math.inf)])
        within = torch.from_numpy(scores[order]).softmax(dim=-1).cumsum(dim=-1).numpy()
        last = min(np.count_nonzero(within < np.float32(self.mass)), scores.size - 1)
        return distance[order[last]]
