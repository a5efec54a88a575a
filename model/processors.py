"""Logits processors: what temperature, top-k, top-p and the others do to the scores of one step.

Each is a small class with one method, and a compound is itself a processor. transformers'
`GenerationConfig` gives the names, its `LogitsProcessor` classes the arithmetic and its
`_get_logits_processor` the order; results are equal to theirs bit by bit. They differ in cost:
nothing here sorts the vocabulary unless rounding could decide the outcome.

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
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from . import ranges
from .errors import FieldError
from .processor import Processor, Rowwise
from .scores import LARGEST, token_ids, with_a_survivor, within
from .truncation import MinP, TopK, TopP, TypicalP

_NO_CONTEXT = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RepetitionPenalty(Rowwise):
    """Makes every token of the context less likely (CTRL, arXiv:1909.05858).

    Negative scores are multiplied by the penalty, others divided by it. Its cost grows with the
    length of the context, not with its number of distinct tokens.
    """

    name: ClassVar[str] = "repetition_penalty"
    cuts: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = False
    penalty: float

    def __post_init__(self) -> None:
        ranges.number("repetition_penalty", self.penalty, 0, LARGEST, above=True)
        if np.float32(self.penalty) == 0:
            raise FieldError("repetition_penalty", self.penalty, "a number above 0")

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        # A token that occurs twice is written twice with the same value.
        seen = within(context, scores.size)
        if not seen.size:
            return scores
        was, penalty = scores[seen], np.float32(self.penalty)
        with np.errstate(over="ignore"):
            penalized = np.where(was < 0, was * penalty, was / penalty)
        result = scores.copy()
        result[seen] = np.minimum(penalized, np.float32(LARGEST))
        return with_a_survivor(result, scores)


@dataclass(frozen=True, slots=True)
class NoRepeatNgram(Rowwise):
    """Removes every token that would complete an n-gram the context already holds.

    See arXiv:1705.04304 and fairseq. `size` 1 removes every token of the context.
    """

    name: ClassVar[str] = "no_repeat_ngram_size"
    cuts: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = False
    size: int

    def __post_init__(self) -> None:
        ranges.whole("no_repeat_ngram_size", self.size, 1, ranges.ENDLESS)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        windows = len(context) - self.size + 1
        if windows <= 0:
            return scores
        repeats = np.ones(windows, dtype=bool)
        for place in range(self.size - 1):
            wanted = context[windows + place]  # the last size - 1 tokens, one after the other
            repeats &= context[place : place + windows] == wanted
        banned = within(context[self.size - 1 :][repeats], scores.size)
        if not banned.size:
            return scores
        result = scores.copy()
        result[banned] = -math.inf
        return with_a_survivor(result, scores)


@dataclass(frozen=True, slots=True)
class Temperature(Rowwise):
    """Divides the scores: below 1 sharpens the distribution, above 1 flattens it."""

    name: ClassVar[str] = "temperature"
    cuts: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = True
    temperature: float

    def __post_init__(self) -> None:
        ranges.number("temperature", self.temperature, 0, sys.float_info.max, above=True)

    def row(self, scores: np.ndarray, context: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            result = scores / np.float32(self.temperature)
            # A tiny temperature overflows to ±inf; one beyond float32 makes NaN: 0/0, inf/inf.
            if not math.isfinite(result.max()):
                below = (scores.astype(np.float64) - float(scores.max())) / self.temperature
                finite = np.maximum(below, -LARGEST).astype(np.float32)
                result = np.where(scores > -math.inf, finite, scores)
        return result


@dataclass(frozen=True, slots=True)
class Processors(Rowwise):
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
        ranges.number("temperature", temperature, 0, sys.float_info.max)
        ranges.whole("no_repeat_ngram_size", no_repeat_ngram_size, 0, ranges.ENDLESS)
        ranges.whole("top_k", top_k, 0, ranges.ENDLESS)
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
