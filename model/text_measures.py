"""Measures of a text as it grows: how likely the model found it, how varied it is.

Each is over all tokens added so far, the end token included, and costs the same for every token,
however long the text.
"""

from __future__ import annotations

import math
from collections import deque

REPEATED = 4  # tokens of a run that counts as repeated


class TextMeasures:
    """Feeds on tokens in the order in which they were written.

    Attributes:
        tokens: how many there were.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._raw = self._final = 0.0  # sums of logprobs, nats
        self._seen: dict[int, set[tuple[int, ...]]] = {1: set(), 2: set(), REPEATED: set()}
        self._last: deque[int] = deque(maxlen=REPEATED)

    def add(self, token_id: int, raw_prob: float, final_prob: float) -> None:
        """One more token, with its probability before and after the processors."""
        self.tokens += 1
        self._raw += _log(raw_prob)
        self._final += _log(final_prob)
        self._last.append(token_id)
        run = tuple(self._last)
        for n, seen in self._seen.items():
            if len(run) >= n:
                seen.add(run[-n:])

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability of a token by the model alone, nats; None without tokens.

        -inf where a token had no probability at all.
        """
        return self._raw / self.tokens if self.tokens else None

    @property
    def mean_final_logprob(self) -> float | None:
        """The same after the processors; 0 where nothing was left to chance."""
        return self._final / self.tokens if self.tokens else None

    def distinct(self, n: int) -> float | None:
        """distinct-1 or distinct-2 of Li et al. (2016), arXiv:1510.03055.

        Different n-grams, divided by the number of tokens: from nearly 0 (the same again and
        again) to 1 (no token comes twice). None without tokens.
        """
        return len(self._seen[n]) / self.tokens if self.tokens else None

    @property
    def repetition(self) -> float | None:
        """seq-rep-4 of Welleck et al. (2020), arXiv:1908.04319.

        Share of the tokens, from the fourth on, that complete a run of four that was in the text
        before; None where there are fewer than four.
        """
        runs = self.tokens - REPEATED + 1
        return 1 - len(self._seen[REPEATED]) / runs if runs > 0 else None


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -math.inf
