"""What a processor is: scores of one step in, scores out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from .scores import admitted, token_ids


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


class Rowwise:
    """Calls `row`, which each processor has, for every row: none can depend on its company."""

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
