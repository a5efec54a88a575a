"""What the model offers at one step, before and after the processors, and where a draw lands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .processors import Processors
from .scores import HEAD, admitted, likeliest


class Softmax:
    """exp(score − largest), over its sum, in float64, of one row of float32 scores.

    *Shape:* scores (vocab,), admitted (see `model.scores.admitted`).
    """

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores
        self.top = float(scores.max())

    @property
    def top_prob(self) -> float:
        """Probability of the likeliest token."""
        return 1.0 / self.total

    @cached_property
    def finite(self) -> int:
        """How many tokens have not been removed."""
        return int(np.count_nonzero(self.scores > -math.inf))

    @cached_property
    def below(self) -> np.ndarray:
        """How far every token left is below the likeliest. *Shape:* (finite,) float64"""
        scores = self.scores
        if self.finite < scores.size:  # exp(−inf) is slow, and 0 · −inf is not 0
            scores = scores[np.flatnonzero(scores > -math.inf)]
        return scores.astype(np.float64) - self.top

    @cached_property
    def weights(self) -> np.ndarray:
        """The same as a fraction of the likeliest one's probability. *Shape:* (finite,) float64"""
        return np.exp(self.below)

    @cached_property
    def total(self) -> float:
        return float(self.weights.sum())

    @cached_property
    def entropy(self) -> float:
        """−Σ p ln p, in nats."""
        # Not a dot product: BLAS would wake a pool of threads for it.
        mean = float((self.weights * self.below).sum()) / self.total
        return max(math.log(self.total) - mean, 0.0)

    def weight(self, ids: np.ndarray) -> np.ndarray:
        """1 for the likeliest token, 0 for removed ones. *Shape:* (n,) → (n,) float64"""
        return np.exp(self.scores[ids].astype(np.float64) - self.top)

    def probs(self, ids: np.ndarray) -> np.ndarray:
        """*Shape:* (n,) → (n,) float64"""
        return self.weight(ids) / self.total

    def likeliest(self, count: int) -> np.ndarray:
        """The `count` likeliest ids, ties by the smaller; removed tokens last. *Shape:* (count,)"""
        ids = likeliest(self.scores, count)[:count]
        if ids.size < count:
            removed = np.flatnonzero(self.scores == -math.inf)[: count - ids.size]
            ids = np.concatenate([ids, removed])
        return ids

    def ruler(self, count: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """The beginning of the ruler: ids in order, and where the interval of each one ends.

        *Shape:* (n,) int64, (n,) float64 with n >= count; and whether that is all of it: then the
        last end is exactly 1. An end is the same number however long a piece is asked for.
        """
        ids = likeliest(self.scores, count)
        weights = self.weight(ids)
        ends = np.minimum(np.cumsum(weights) / self.total, 1.0)
        whole = ids.size == self.finite or weights[-1] == 0
        if whole:
            last = np.count_nonzero(weights)  # weights may underflow to 0: no draw lands there
            ids, ends = ids[:last], ends[:last]
            ends[-1] = 1.0
        return ids, ends, whole


class Distribution:
    """One row, one step: raw = softmax(logits), final = after the processors, renormalised.

    Nothing is computed before it is asked for, apart from the processors. Everything is on the
    CPU: logits on another device are copied once.

    Attributes:
        vocab_size: number of tokens on offer.
        logits: the model's scores, +inf as the largest float32. *Shape:* (vocab,) float32
        final_scores: the same after the processors, −inf where a token was removed; `logits`
            itself where there are none. *Shape:* (vocab,) float32
    """

    def __init__(self, logits: Tensor, processors: Processors, context: Sequence[int]) -> None:
        """
        Args:
            logits: any float dtype, used as float32; kept, not copied, where it is that already.
                *Shape:* (vocab,)
            processors: what the settings do to them.
            context: the token ids so far, prompt included.

        Raises:
            BadLogits: NaN, or no finite logit.
        """
        if logits.dim() != 1:
            raise ValueError(f"logits must be (vocab,), not {tuple(logits.shape)}.")
        scores = admitted(logits.detach().to("cpu", torch.float32).contiguous().numpy())
        self.vocab_size = scores.size
        self._keeps_order = processors.keeps_order
        self._stages = processors.stages(scores, context)
        self._raw = Softmax(scores)
        self._final = Softmax(self._stages[-1][1]) if self._stages else self._raw
        self.logits = torch.from_numpy(scores)
        self.final_scores = torch.from_numpy(self._final.scores) if self._stages else self.logits
        self._head: tuple[np.ndarray, np.ndarray, bool] | None = None

    @property
    def entropy(self) -> float:
        """Of the raw distribution, in nats: e to it is a number of equally likely tokens."""
        return self._raw.entropy

    @property
    def final_entropy(self) -> float:
        """Of the final distribution, in nats."""
        return self._final.entropy

    @property
    def kept(self) -> int:
        """Tokens that are left: their final score is above −inf."""
        return self._final.finite

    @cached_property
    def kept_prob(self) -> float:
        """Raw probability that the tokens left hold together."""
        if self._final.finite == self._raw.finite:
            return 1.0
        left = np.flatnonzero(self._final.scores > -math.inf)
        return min(float(self._raw.probs(left).sum()), 1.0)

    def effects(self) -> list[tuple[str, int, float, int, float, float]]:
        """What each processor did, in their order.

        Returns:
            (name, tokens removed, raw probability these held, tokens changed but not removed,
            probability of the likeliest token before, and after) of each.
        """
        done = []
        before, left = self._raw, 1.0
        for place, (name, scores) in enumerate(self._stages):
            last = place == len(self._stages) - 1
            after = self._final if last else Softmax(scores)
            cut, still = before.finite - after.finite, left
            if cut:
                ids = np.flatnonzero(scores > -math.inf)
                still = min(float(self._raw.probs(ids).sum()), left)
            changed = int(np.count_nonzero(scores != before.scores)) - cut
            tops = (before.top_prob, after.top_prob)
            done.append((name, cut, left - still, changed, *tops))
            before, left = after, still
        return done

    def raw_prob(self, token_id: int) -> float:
        return float(self._raw.probs(np.array([self._known(token_id)]))[0])

    def final_prob(self, token_id: int) -> float:
        return float(self._final.probs(np.array([self._known(token_id)]))[0])

    def rank(self, token_id: int) -> int:
        """Place by raw logit, 1 for the largest; of equal ones the smaller id comes first."""
        scores = self._raw.scores
        score = scores[self._known(token_id)]
        before = np.count_nonzero(scores[:token_id] == score)
        return 1 + int(np.count_nonzero(scores > score)) + int(before)

    def favourite(self) -> int:
        """The token with the largest final score; of equal ones the smaller id."""
        return int(self._final.scores.argmax())

    def at(self, u: float) -> tuple[int, float, float]:
        """Where `u` lands on the ruler of cumulative final probability.

        The ruler runs from 0 to 1, likeliest token first (equal ones by the smaller id); every
        token holds an interval as long as its final probability, and they leave no gap.

        Returns:
            token_id, low, high with low <= u < high.

        Raises:
            ValueError: u outside [0, 1).
        """
        if not 0 <= u < 1:
            raise ValueError(f"u must be at least 0 and below 1, not {u!r}.")
        self._head = self._head or self._final.ruler(HEAD)
        ids, ends, whole = self._head
        place = int(np.searchsorted(ends, u, side="right"))
        if not whole and place >= ids.size - 1:
            # Beyond the head; or on its last token, which may turn out to be the last of all. A
            # draw this far out is rare, but a step may be drawn a hundred times: keep the ruler.
            ids, ends, _ = self._head = self._final.ruler(self.vocab_size)
            place = int(np.searchsorted(ends, u, side="right"))
        low = float(ends[place - 1]) if place else 0.0
        return int(ids[place]), low, float(ends[place])

    def candidates(
        self, count: int, include: Iterable[int] = ()
    ) -> list[tuple[int, float, float, float, str | None]]:
        """The tokens worth showing, likeliest by the raw distribution first (ties: smaller id).

        The `count` likeliest of it; where a processor changes the order (a penalty, an n-gram
        ban, typical-p) also the `count` likeliest tokens left of the final one; and `include`.

        Returns:
            (token_id, logit, raw_prob, final_prob, cut_by) of each. `cut_by` names the first
            processor that took the score to −inf; None for a token that is left, and for one that
            the model itself gave −inf: nobody removed it, and its raw probability is 0 too.
        """
        count = min(count, self.vocab_size)
        ids = self._raw.likeliest(count)
        more = [self._known(token_id) for token_id in include]
        if not self._keeps_order:
            more.extend(likeliest(self._final.scores, count)[:count].tolist())
        more = sorted(set(more).difference(ids.tolist()))
        if more:
            ids = np.concatenate([ids, np.array(more, dtype=np.int64)])
            ids = ids[np.lexsort((ids, -self._raw.scores[ids]))]
        raw = self._raw.probs(ids).tolist()
        final = self._final.probs(ids).tolist() if self._stages else raw
        logits = self._raw.scores[ids].tolist()
        return list(zip(ids.tolist(), logits, raw, final, self._cut_by(ids), strict=True))

    def _cut_by(self, ids: np.ndarray) -> list[str | None]:
        names: list[str | None] = [None] * ids.size
        here = self._raw.scores[ids] > -math.inf
        for name, scores in self._stages:
            left = scores[ids] > -math.inf
            for place in np.flatnonzero(here & ~left).tolist():
                names[place] = name
            here = left
        return names

    def _known(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise IndexError(f"token {token_id} is not among the {self.vocab_size} on offer.")
        return token_id
