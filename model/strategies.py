"""Strategies: from the logits of their own rows to the tokens that are appended.

A strategy is a frozen record of settings. For each run it makes a *decider*, which sees only the
rows of that run and their contexts and answers with a `Decision`: how every row goes on (which
earlier row it continues, which tokens are appended, which are merely proposed) and what to report.
One row that appends one token is the simplest case; beam search forks rows, speculative decoding
feeds several proposed tokens at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from . import ranges
from .distribution import Distribution
from .draw import uniform
from .processors import Processors

LARGEST_SEED = 2**53 - 1  # what a number in a browser holds exactly
COLDEST = 1e-5  # below this temperature only exact ties could still be drawn: it is greedy


@dataclass(frozen=True, slots=True)
class RowLogits:
    """What a decider sees of one of its rows.

    Attributes:
        logits: *Shape:* (fed, vocab), one line per token fed in this step, the newest last.
        context: all tokens of the row up to and including the newest.
        hidden: what the output embedding makes these logits from: the last layer's states, after
            the final norm. *Shape:* (fed, width); None unless the decider `wants_hidden`.
    """

    logits: torch.Tensor
    context: Sequence[int]
    hidden: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """How one row goes on.

    Attributes:
        parent: index of the row it continues; two continuations of one parent fork it.
        append: tokens added to its text.
        propose: tokens fed behind them in the next step without being part of the text yet. Those
            beyond the run's limit are left out: `RowLogits.context` tells what was fed.
    """

    parent: int
    append: tuple[int, ...]
    propose: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One token chosen from one distribution; the run makes a `Step` of it.

    Attributes:
        distribution: what was offered.
        token_id: what was chosen.
        draw: the uniform number used, None where nothing was drawn.
        span: the token's part of the ruler of cumulative probability, where one was drawn.
    """

    distribution: Distribution
    token_id: int
    draw: float | None = None
    span: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a decider answers.

    Attributes:
        continuations: the rows from now on; none only where the run ends.
        choices: tokens that are now part of the run's text; each becomes a `Step`.
        reports: further events to tell, behind those steps: plain data that pickles.
        ended: None, or how the run ends with this decision, as in `Finished.reason`. End tokens,
            stop strings and the limit need not be said.
    """

    continuations: tuple[Continuation, ...]
    choices: tuple[Choice, ...] = ()
    reports: tuple[Any, ...] = ()
    ended: str | None = None


class Decider(Protocol):
    """Decides for one run. An optional attribute `wants_hidden` (True) asks for hidden states."""

    def decide(self, rows: Sequence[RowLogits]) -> Decision: ...


class Strategy(Protocol):
    """Settings that can decode. `with_seed` are the same with this seed where they have none.

    Attributes:
        draws: whether anything is left to chance.
        seed: of its draws; None lets the engine pick one.
        rows: how many rows a run of it has at most; the cache is reserved for so many.
    """

    @property
    def draws(self) -> bool: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def rows(self) -> int: ...

    def with_seed(self, seed: int) -> Strategy: ...

    def decider(self) -> Decider: ...

    def choose(self, logits: torch.Tensor, context: Sequence[int]) -> Choice: ...


def _check_penalties(strategy: Any) -> None:
    put = object.__setattr__
    put(
        strategy,
        "repetition_penalty",
        ranges.number("repetition_penalty", strategy.repetition_penalty, 0.01, 100),
    )
    put(
        strategy,
        "no_repeat_ngram_size",
        ranges.whole("no_repeat_ngram_size", strategy.no_repeat_ngram_size, 0, 1000),
    )


@dataclass(frozen=True)
class Greedy:
    """Always the most probable token.

    Args:
        repetition_penalty: above 1 makes tokens that are already in the text less likely
            (Keskar et al. 2019); 1 is off.
        no_repeat_ngram_size: no sequence of this many tokens may occur twice; 0 is off.

    Raises:
        FieldError: a value outside its range.
    """

    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    processors: Processors = field(init=False, repr=False, compare=False)

    draws = False
    seed = None
    rows = 1

    def __post_init__(self) -> None:
        _check_penalties(self)
        made = Processors.of(
            sampling=False,
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
        )
        object.__setattr__(self, "processors", made)

    def with_seed(self, seed: int) -> Greedy:
        return self

    def decider(self) -> Decider:
        return OneRow(self)

    def choose(self, logits: torch.Tensor, context: Sequence[int]) -> Choice:
        distribution = Distribution(logits, self.processors, context)
        return Choice(distribution, distribution.favourite())


@dataclass(frozen=True)
class Sampling:
    """Draw the next token from the final distribution.

    Neutral by default: with temperature 1, top_k 0 and top_p 1 it draws from the model's own
    distribution. Temperature 0 is greedy.

    Args:
        temperature: divides the logits; below 1 sharpens, above 1 flattens. 0 to 100.
        top_k: only the k most probable tokens stay (Fan et al. 2018); 0 is off.
        top_p: only the smallest set of tokens that together reach this probability stays
            (nucleus sampling, Holtzman et al. 2020); 1 is off.
        min_p: only tokens with at least this fraction of the best one's probability stay
            (Nguyen et al. 2024); 0 is off.
        typical_p: only the tokens whose surprise is nearest to the entropy stay, until they reach
            this probability (Meister et al. 2023); 1 is off.
        repetition_penalty, no_repeat_ngram_size: as for `Greedy`.
        seed: 0 to 2**53 - 1; the same seed, prompt and settings give the same text. None lets the
            engine pick one and report it.

    Raises:
        FieldError: a value outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    seed: int | None = None
    processors: Processors = field(init=False, repr=False, compare=False)

    rows = 1

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("temperature", ranges.number("temperature", self.temperature, 0, 100))
        put("top_k", ranges.whole("top_k", self.top_k, 0, 2**31 - 1))
        put("top_p", ranges.number("top_p", self.top_p, 0, 1))
        put("min_p", ranges.number("min_p", self.min_p, 0, 1))
        put("typical_p", ranges.number("typical_p", self.typical_p, 0, 1, above=True))
        _check_penalties(self)
        if self.seed is not None:
            put("seed", ranges.whole("seed", self.seed, 0, LARGEST_SEED))
        made = Processors.of(
            sampling=self.draws,
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
        )
        put("processors", made)

    @property
    def draws(self) -> bool:
        return self.temperature >= COLDEST

    def with_seed(self, seed: int) -> Sampling:
        return self if self.seed is not None else replace(self, seed=seed)

    def decider(self) -> Decider:
        return OneRow(self)

    def choose(self, logits: torch.Tensor, context: Sequence[int]) -> Choice:
        """The token on which this position's uniform number lands.

        The number depends on the seed and the position in the whole context alone, so a run that
        is continued, branched or shares its steps with others draws what it would have drawn.
        """
        distribution = Distribution(logits, self.processors, context)
        if not self.draws:
            return Choice(distribution, distribution.favourite())
        if self.seed is None:
            raise ValueError("a seed is needed to draw; with_seed gives one")
        draw = uniform(self.seed, len(context))
        token_id, low, high = distribution.at(draw)
        return Choice(distribution, token_id, draw, (low, high))


class OneRow:
    """The decider of every strategy that appends one token to one row a step."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def decide(self, rows: Sequence[RowLogits]) -> Decision:
        (row,) = rows
        choice = self.strategy.choose(row.logits[-1], row.context)
        return Decision((Continuation(0, (choice.token_id,)),), (choice,))
