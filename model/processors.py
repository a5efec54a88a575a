"""Logits processors: what temperature, top-k, top-p and the others do to the scores of one step.

Each is a small class with one method, and a compound is itself a processor. transformers'
`GenerationConfig` gives the names, its `LogitsProcessor` classes the arithmetic and its
`_get_logits_processor` the order; results are equal to theirs bit by bit. They differ in cost:
nothing here sorts the vocabulary unless rounding could decide the outcome.

Rows are float32 numpy arrays on the inside: on one row its single-threaded operations cost
microseconds, while torch's own wake a pool of threads, which on a busy machine costs milliseconds.
torch computes what has to round as transformers does.

Where transformers has no answer, or one that hangs on its sort, the rules are:

* At least one token survives. A processor that would remove all of them (an n-gram ban in a tiny
  vocabulary) leaves the one that was best before it.
* A score of +inf counts as the largest finite float32, so such tokens share all the mass.
* NaN anywhere, or no finite score at all, raises `BadLogits`.
* Top-p may have to cut between exactly equal scores: it keeps as many as transformers does, the
  smaller ids first (`torch.sort`, which decides it there, is not stable). Top-k, min-p and
  typical-p never separate equal scores, as in transformers.
* A temperature so small that dividing by it overflows is applied to the distance from the best
  score instead: the same distribution, without the NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from .errors import FieldError

_LARGEST = float(np.finfo(np.float32).max)

# Tokens that a cut by cumulative mass looks at before it considers the whole vocabulary.
HEAD = 1024


class BadLogits(ArithmeticError):
    """The model's scores hold NaN, or not one finite number: there is nothing to choose from."""


class Processor(Protocol):
    """A transform of the scores that one decoding step chooses by.

    Attributes:
        name: spelled as in `GenerationConfig`.
        cuts: its purpose is to remove tokens (set them to −inf).
        keeps_order: of the tokens it leaves, none overtakes another, and no token that it removes
            had a higher score than one it leaves.
    """

    name: ClassVar[str]
    cuts: ClassVar[bool]
    keeps_order: ClassVar[bool]

    def __call__(self, scores: Tensor, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Transform the scores of some rows, each by its own context alone.

        *Shape:* (rows, vocab) → (rows, vocab), float32, on the device they came from.

        Args:
            scores: never changed in place; may itself be the answer where nothing changes.
            contexts: for every row the token ids so far, prompt included. `array("q")` and int64
                numpy arrays are taken without a copy (8,000 ids in a list cost 0.1 ms).

        Raises:
            BadLogits: NaN, or a row without a finite score.
        """
        ...

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        """The same for one row of scores as `admitted` returns them.

        *Shape:* (vocab,) float32 → (vocab,) float32; `context` (length,) int64.
        """
        ...


class _Rowwise:
    """Calls `row` for every row, so that no row can depend on its company."""

    def __call__(self, scores: Tensor, contexts: Sequence[Sequence[int]]) -> Tensor:
        if scores.dim() != 2 or len(contexts) != len(scores):
            raise ValueError(
                f"scores must be (rows, vocab) with one context a row, not {tuple(scores.shape)} "
                f"with {len(contexts)} contexts."
            )
        here = scores.detach().to("cpu", torch.float32).numpy()
        result = np.empty_like(here)
        for place, context in enumerate(contexts):
            result[place] = self.row(admitted(here[place]), token_ids(context))
        return torch.from_numpy(result).to(scores.device)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RepetitionPenalty(_Rowwise):
    """Makes every token of the context less likely (CTRL, arXiv:1909.05858).

    Negative scores are multiplied by the penalty, others divided by it. Its cost grows with the
    length of the context, not with its number of distinct tokens.
    """

    name: ClassVar[str] = "repetition_penalty"
    cuts: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    penalty: float

    def __post_init__(self) -> None:
        _check("repetition_penalty", self.penalty, 0.0, _LARGEST, "a number above 0")
        if np.float32(self.penalty) == 0:
            raise FieldError("repetition_penalty", self.penalty, "a number above 0")

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        # A token that occurs twice is written twice with the same value.
        seen = _within(context, scores.size)
        if not seen.size:
            return scores
        was, penalty = scores[seen], np.float32(self.penalty)
        with np.errstate(over="ignore"):
            penalized = np.where(was < 0, was * penalty, was / penalty)
        result = scores.copy()
        result[seen] = np.minimum(penalized, np.float32(_LARGEST))
        return _with_a_survivor(result, scores)


@dataclass(frozen=True, slots=True)
class NoRepeatNgram(_Rowwise):
    """Removes every token that would complete an n-gram the context already holds.

    See arXiv:1705.04304 and fairseq. `size` 1 removes every token of the context.
    """

    name: ClassVar[str] = "no_repeat_ngram_size"
    cuts: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = False
    size: int

    def __post_init__(self) -> None:
        _check_whole("no_repeat_ngram_size", self.size, 1)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        windows = len(context) - self.size + 1
        if windows <= 0:
            return scores
        repeats = np.ones(windows, dtype=bool)
        for place in range(self.size - 1):
            wanted = context[windows + place]  # the last size - 1 tokens, one after the other
            repeats &= context[place : place + windows] == wanted
        banned = _within(context[self.size - 1 :][repeats], scores.size)
        if not banned.size:
            return scores
        result = scores.copy()
        result[banned] = -math.inf
        return _with_a_survivor(result, scores)


@dataclass(frozen=True, slots=True)
class Temperature(_Rowwise):
    """Divides the scores: below 1 sharpens the distribution, above 1 flattens it."""

    name: ClassVar[str] = "temperature"
    cuts: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = True
    temperature: float

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, math.inf, "a number above 0")
        if self.temperature == 0:
            raise FieldError("temperature", self.temperature, "a number above 0")

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            result = scores / np.float32(self.temperature)
            # A tiny temperature overflows to ±inf; one beyond float32 makes NaN: 0/0, inf/inf.
            if not math.isfinite(result.max()):
                below = (scores.astype(np.float64) - float(scores.max())) / self.temperature
                finite = np.maximum(below, -_LARGEST).astype(np.float32)
                result = np.where(scores > -math.inf, finite, scores)
        return result


@dataclass(frozen=True, slots=True)
class TopK(_Rowwise):
    """Keeps the k largest scores, and those equal to the k-th (arXiv:1805.04833)."""

    name: ClassVar[str] = "top_k"
    cuts: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    top_k: int

    def __post_init__(self) -> None:
        _check_whole("top_k", self.top_k, 1)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        if self.top_k >= scores.size:
            return scores
        ids = likeliest(scores, self.top_k)
        if ids.size < self.top_k:
            return scores
        ordered = scores[ids]
        return _only(scores, ids[ordered >= ordered[self.top_k - 1]])


@dataclass(frozen=True, slots=True)
class TopP(_Rowwise):
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
        _check("top_p", self.top_p, 0.0, 1.0, "a number from 0 to 1")

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        ids, count = self.kept(scores)
        if count is None:
            count = self.kept_by_sort(scores)
            ids = ids if ids.size >= count else likeliest(scores, count)
        return _only(scores, ids[:count])

    def kept(self, scores: np.ndarray) -> tuple[np.ndarray, int | None]:
        """The likeliest ids in order, and how many stay; None where only the sort can tell."""
        ids = likeliest(scores, HEAD)
        if scores.size <= 2 * HEAD:
            return ids, None  # here the sort costs next to nothing
        top = scores[ids[0]]
        weights = _weights(scores, ids, top)
        complete = ids.size < HEAD
        total = weights.sum() if complete else _mass(scores, top)
        above = (np.cumsum(weights) - weights) / total  # what the tokens before each one hold
        count = max(int(np.searchsorted(above, self.top_p)), 1)
        if count == ids.size and not complete:
            return ids, None
        margin = (1 - self.top_p) * _rounding(scores.size) + 1e-6
        border = above[max(count - 1, 1) : count + 1]  # the first token stays in any case
        return ids, None if (np.abs(border - self.top_p) < margin).any() else count

    def kept_by_sort(self, scores: np.ndarray) -> int:
        """How many tokens stay, by transformers' own arithmetic on the sorted scores."""
        ascending = torch.from_numpy(np.sort(scores))
        below = ascending.softmax(dim=-1).cumsum(dim=-1).numpy()
        return max(int(np.count_nonzero(below > np.float32(1 - self.top_p))), 1)


@dataclass(frozen=True, slots=True)
class MinP(_Rowwise):
    """Keeps the tokens at least `min_p` times as likely as the likeliest (arXiv:2407.01082)."""

    name: ClassVar[str] = "min_p"
    cuts: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = True
    min_p: float

    def __post_init__(self) -> None:
        _check("min_p", self.min_p, 0.0, 1.0, "a number from 0 to 1")

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        # min_p <= 1, so the likeliest token is never below its own share.
        probs = torch.from_numpy(scores).softmax(dim=-1).numpy()
        kept = probs >= np.float32(self.min_p) * probs.max()
        return _only(scores, np.flatnonzero(kept))


@dataclass(frozen=True, slots=True)
class TypicalP(_Rowwise):
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
        _check("typical_p", self.mass, 0.0, 1.0, "a number above 0 and below 1")
        if self.mass in (0, 1):
            raise FieldError("typical_p", self.mass, "a number above 0 and below 1")

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        logprobs = torch.from_numpy(scores).log_softmax(dim=-1)
        entropy = -(logprobs * logprobs.exp()).nansum()  # 0 · −inf counts as 0
        distance = (-logprobs - entropy).abs_().numpy()
        limit = self.limit(scores, distance)
        if limit is None:
            limit = self.limit_by_sort(scores, distance)
        return _only(scores, np.flatnonzero(distance <= limit))

    def limit(self, scores: np.ndarray, distance: np.ndarray) -> float | None:
        """The largest distance that stays; None where only the sort can tell."""
        if scores.size <= 2 * HEAD:
            return None
        ids = likeliest(-distance, HEAD)
        top = scores.max()
        within = np.cumsum(_weights(scores, ids, top)) / _mass(scores, top)
        last = int(np.searchsorted(within, self.mass))
        if last == ids.size:
            return None
        margin = self.mass * _rounding(scores.size) + 1e-6
        border = within[max(last - 1, 0) : last + 1]
        return None if (np.abs(border - self.mass) < margin).any() else distance[ids[last]]

    def limit_by_sort(self, scores: np.ndarray, distance: np.ndarray) -> float:
        """The same by transformers' own arithmetic on the whole order."""
        order = likeliest(-distance, scores.size)
        order = np.concatenate([order, np.flatnonzero(distance == math.inf)])
        within = torch.from_numpy(scores[order]).softmax(dim=-1).cumsum(dim=-1).numpy()
        last = min(np.count_nonzero(within < np.float32(self.mass)), scores.size - 1)
        return distance[order[last]]


@dataclass(frozen=True, slots=True)
class Processors(_Rowwise):
    """Several processors, one after the other; itself a processor. Empty changes nothing."""

    name: ClassVar[str] = "processors"
    steps: tuple[Processor, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        sampling: bool,
        repetition_penalty: float = 1.0,
        no_repeat_ngram_size: int = 0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
    ) -> Processors:
        """The processors of some settings, in transformers' order; neutral values add none.

        Args:
            sampling: with False only the first two apply (greedy and beam search take a maximum,
                which the others are there to soften or to bound); temperature 0 means the same.

        Raises:
            FieldError: a value outside its range, whether or not it applies.
        """
        _check("temperature", temperature, 0.0, math.inf, "a number from 0 up")
        _check_whole("no_repeat_ngram_size", no_repeat_ngram_size, 0)
        _check_whole("top_k", top_k, 0)
        steps: list[Processor] = []
        if repetition_penalty != 1:
            steps.append(RepetitionPenalty(repetition_penalty))
        if no_repeat_ngram_size != 0:
            steps.append(NoRepeatNgram(no_repeat_ngram_size))
        warpers: list[Processor] = []
        if temperature not in (0, 1):
            warpers.append(Temperature(temperature))
        if top_k != 0:
            warpers.append(TopK(top_k))
        if top_p != 1:
            warpers.append(TopP(top_p))
        if min_p != 0:
            warpers.append(MinP(min_p))
        if typical_p != 1:
            warpers.append(TypicalP(typical_p))
        return cls((*steps, *(warpers if sampling and temperature != 0 else ())))

    @property
    def cuts(self) -> bool:
        return any(step.cuts for step in self.steps)

    @property
    def keeps_order(self) -> bool:
        return all(step.keeps_order for step in self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Processor]:
        return iter(self.steps)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        return self.stages(scores, context)[-1][1] if self.steps else scores

    def stages(self, scores: np.ndarray, context: Sequence[int]) -> list[tuple[str, np.ndarray]]:
        """The scores after each processor, with its name: who removed what can be read off.

        *Shape:* (vocab,) float32 → one (vocab,) per processor. `scores` as `admitted` returns them.
        """
        stages = []
        ids = token_ids(context) if self.needs_context else _NO_CONTEXT
        for step in self.steps:
            scores = step.row(scores, ids)
            stages.append((step.name, scores))
        return stages

    @property
    def needs_context(self) -> bool:
        return any(isinstance(step, RepetitionPenalty | NoRepeatNgram) for step in self.steps)


def admitted(scores: np.ndarray) -> np.ndarray:
    """One row of scores that processors can work on: +inf becomes the largest float32.

    *Shape:* (vocab,) float32; the same array where there is nothing to change.

    Raises:
        BadLogits: NaN, or no finite score.
    """
    top = scores.max() if scores.size else -math.inf  # NaN wins every maximum
    if math.isfinite(top):
        return scores
    if math.isnan(top):
        raise BadLogits("The scores hold NaN.")
    if not np.isfinite(scores).any():
        raise BadLogits("Not one score is finite.")
    return np.minimum(scores, np.float32(_LARGEST))


def token_ids(context: Sequence[int]) -> np.ndarray:
    """A context as int64 numpy, without a copy where it already is one. *Shape:* (length,)"""
    if isinstance(context, Tensor):
        context = context.detach().cpu().numpy()
    if isinstance(context, list | tuple):
        return np.fromiter(context, np.int64, len(context))
    return np.asarray(context, dtype=np.int64)


def likeliest(scores: np.ndarray, count: int) -> np.ndarray:
    """The ids of the largest finite scores, in order; equal ones by the smaller id first.

    At least `count` of them (fewer only if fewer are finite) and always all that equal the last,
    so that a prefix of the answer never depends on chance among ties.

    *Shape:* (vocab,) float32 without NaN → (at least count,) int64

    The vocabulary is not sorted: it is folded into columns, the count-th largest of their maxima
    is a floor that at least `count` scores reach, and few more do.
    """
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    fold = min(48, scores.size // (6 * count))
    if fold > 1:
        columns = scores.size // fold
        best = scores[: fold * columns].reshape(fold, columns).max(axis=0)
    else:
        best = scores
    best = best[best > -math.inf]  # a row of which most is cut would be slow to partition
    floor = -math.inf
    if count < best.size:
        floor = np.partition(best, best.size - count)[best.size - count]
    ids = np.flatnonzero(scores >= floor if floor > -math.inf else scores > floor)
    # One integer a token that sorts by falling score, then by rising id: float32 bits rise with
    # the value once those of negative numbers are turned round. Adding 0 makes −0 equal to 0.
    bits = (scores[ids] + np.float32(0)).view(np.int32)
    rising = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    keys = ((~rising).astype(np.int64) << 32) | ids
    keys.sort()
    return keys & 0xFFFFFFFF


_NO_CONTEXT = np.empty(0, dtype=np.int64)


def _within(context: np.ndarray, vocab: int) -> np.ndarray:
    """The ids that have a score: embeddings may outnumber them. transformers skips the rest too."""
    return context[(context >= 0) & (context < vocab)]


def _only(scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The scores of some ids, −inf elsewhere. *Shape:* (vocab,), (kept,) → (vocab,)"""
    result = np.full(scores.size, -math.inf, dtype=np.float32)
    result[ids] = scores[ids]
    return result


def _with_a_survivor(result: np.ndarray, before: np.ndarray) -> np.ndarray:
    """`result`, or if it removed every token, the one that was best before. Changes `result`."""
    if result.max() == -math.inf:
        best = before.argmax()
        result[best] = before[best]
    return result


def _weights(scores: np.ndarray, ids: np.ndarray, top: np.float32) -> np.ndarray:
    """exp(score − top) of some ids, in float64. *Shape:* (vocab,), (n,) → (n,)"""
    return np.exp(scores[ids].astype(np.float64) - float(top))


def _mass(scores: np.ndarray, top: np.float32) -> float:
    """Σ exp(score − top) over the vocabulary, summed in float64."""
    with np.errstate(over="ignore"):  # two huge scores of opposite sign: exp(−inf) = 0 is right
        return float(np.exp(scores - top).sum(dtype=np.float64))


def _rounding(vocab: int) -> float:
    """How far transformers' float32 softmax may be off, as a fraction of any mass it holds.

    Its normaliser is a float32 sum in eight or more lanes. Adding equal terms is the worst case:
    n of them in one lane are off by up to n/2 · 2⁻²⁴ of their sum.
    """
    return vocab * 2**-28


def _check(field: str, value: float, low: float, high: float, allowed: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (low <= value <= high) or math.isinf(value):
        raise FieldError(field, value, allowed)


def _check_whole(field: str, value: int, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise FieldError(field, value, f"a whole number from {low} up")
