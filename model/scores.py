"""One row of scores as numbers: admitted, ordered, weighed, cut.

Rows are float32 numpy arrays on the inside: on one row its single-threaded operations cost
microseconds, while torch's own wake a pool of threads, which on a busy machine costs milliseconds.
torch computes what has to round as transformers does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

LARGEST = float(np.finfo(np.float32).max)

# Tokens that a cut by cumulative mass looks at before it considers the whole vocabulary.
HEAD = 1024


class BadLogits(ArithmeticError):
    """The model's scores hold NaN, or not one finite number: there is nothing to choose from."""


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
    return np.minimum(scores, np.float32(LARGEST))


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


def within(context: np.ndarray, vocab: int) -> np.ndarray:
    """The ids that have a score: embeddings may outnumber them. transformers skips the rest too."""
    return context[(context >= 0) & (context < vocab)]


def only(scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The scores of some ids, −inf elsewhere. *Shape:* (vocab,), (kept,) → (vocab,)"""
    result = np.full(scores.size, -math.inf, dtype=np.float32)
    result[ids] = scores[ids]
    return result


def with_a_survivor(result: np.ndarray, before: np.ndarray) -> np.ndarray:
    """`result`, or if it removed every token, the one that was best before. Changes `result`."""
    if result.max() == -math.inf:
        best = before.argmax()
        result[best] = before[best]
    return result


def weighed(scores: np.ndarray, ids: np.ndarray, top: np.float32) -> np.ndarray:
    """exp(score − top) of some ids, in float64. *Shape:* (vocab,), (n,) → (n,)"""
    return np.exp(scores[ids].astype(np.float64) - float(top))


def mass(scores: np.ndarray, top: np.float32) -> float:
    """Σ exp(score − top) over the vocabulary, summed in float64."""
    with np.errstate(over="ignore"):  # two huge scores of opposite sign: exp(−inf) = 0 is right
        return float(np.exp(scores - top).sum(dtype=np.float64))


def rounding(vocab: int) -> float:
    """How far transformers' float32 softmax may be off, as a fraction of any mass it holds.

    Its normaliser is a float32 sum in eight or more lanes. Adding equal terms is the worst case:
    n of them in one lane are off by up to n/2 · 2⁻²⁴ of their sum.
    """
    return vocab * 2**-28
