"""Strategies for tests: faulty ones, several tokens a pass, several rows, scripted answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tiny_models import VOCAB

from model import Greedy, Waiting
from model.strategies import Continuation, Decision, OneRow


class Undrawn:
    """What these strategies share: nothing is drawn, and one row chooses as `inner` does."""

    draws = False
    seed = None
    rows = 1

    def with_seed(self, seed: int) -> Undrawn:
        return self

    def choose(self, logits: torch.Tensor, context: Any) -> Any:
        return self.inner.choose(logits, context)


@dataclass(frozen=True)
class Faulty(Undrawn):
    """Greedy until its third step, then a bug."""

    where: str = "decide"
    inner: Greedy = field(default_factory=Greedy)

    def decider(self) -> Any:
        if self.where == "decider":
            raise ZeroDivisionError("no decider")
        return self._Decider(self.inner.decider())

    @dataclass
    class _Decider:
        inner: Any
        steps: int = 0

        def decide(self, rows: Any) -> Any:
            self.steps += 1
            if self.steps == 3:
                raise KeyError("a bug in a strategy")
            return self.inner.decide(rows)


@dataclass(frozen=True)
class Guessing(Undrawn):
    """Greedy through guesses: several tokens are checked in one pass, wrong ones rejected.

    Attributes:
        oracle: the text to guess from; every fifth guess is spoilt.
        bonus: whether a pass whose guesses all held also adds the token after them.
    """

    oracle: tuple[int, ...]
    prompt: int
    guesses: int = 4
    bonus: bool = True
    inner: Greedy = field(default_factory=Greedy)

    def decider(self) -> Any:
        return _Guesser(self)


class _Guesser:
    def __init__(self, strategy: Guessing) -> None:
        self.strategy, self.proposed = strategy, ()

    def decide(self, rows: Any) -> Decision:
        (row,) = rows
        fed = row.logits.shape[0] - 1  # those beyond the limit were left out
        known, self.proposed = len(row.context) - fed, self.proposed[:fed]
        assert row.logits.shape == (1 + len(self.proposed), VOCAB)
        assert tuple(row.context[known:]) == self.proposed
        choices = []
        for i, logits in enumerate(row.logits):
            if i == len(self.proposed) and i and not self.strategy.bonus:
                break
            choices.append(self.strategy.choose(logits, row.context[: known + i]))
            if i < len(self.proposed) and choices[-1].token_id != self.proposed[i]:
                break
        append = tuple(choice.token_id for choice in choices)
        at = known + len(append) - self.strategy.prompt
        guesses = self.strategy.oracle[at : at + self.strategy.guesses]
        self.proposed = tuple(
            (g + 1) % VOCAB if (at + i) % 5 == 4 else g for i, g in enumerate(guesses)
        )
        return Decision((Continuation(0, append, self.proposed),), tuple(choices))


@dataclass(frozen=True)
class TwoRows(Undrawn):
    """Beam search with two beams, as small as it can be; `seen` gets the rows of every step."""

    seen: list[list[tuple[float, list[int]]]] = field(default_factory=list, compare=False)
    inner: Greedy = field(default_factory=Greedy)
    rows = 2

    def decider(self) -> Any:
        return _TwoRows(self)


class _TwoRows:
    def __init__(self, strategy: TwoRows) -> None:
        self.strategy, self.totals = strategy, [0.0]

    def decide(self, rows: Any) -> Decision:
        options = []
        for parent, (row, total) in enumerate(zip(rows, self.totals, strict=True)):
            logprobs = row.logits[-1].double().log_softmax(-1) + total
            best = logprobs.topk(2)
            options += [
                (value, parent, token_id)
                for value, token_id in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
        kept = sorted(options, reverse=True)[:2]
        self.totals = [total for total, _, _ in kept]
        self.strategy.seen.append([(t, [*rows[p].context, i]) for t, p, i in kept])
        _, parent, token_id = kept[0]
        choice = replace(
            self.strategy.choose(rows[parent].logits[-1], rows[parent].context), token_id=token_id
        )
        return Decision(tuple(Continuation(p, (i,)) for _, p, i in kept), (choice,))


@dataclass(frozen=True)
class Dictated(Undrawn):
    """Writes these tokens, whatever the model says; then there is a bug.

    Attributes:
        prompt: tokens before the text.
    """

    script: tuple[int, ...]
    prompt: int
    inner: Greedy = field(default_factory=Greedy)

    def choose(self, logits: torch.Tensor, context: Any) -> Any:
        token_id = self.script[len(context) - self.prompt]
        return replace(self.inner.choose(logits, context), token_id=token_id)

    def decider(self) -> Any:
        return OneRow(self)


@dataclass(frozen=True)
class Scripted(Undrawn):
    """Answers what its script says, however the logits are; rows never choose anything."""

    script: tuple[Any, ...]  # decisions, the last one again and again; exceptions are raised
    hidden: list[Any] = field(default_factory=list, compare=False)
    wants_hidden: bool = False
    inner: Greedy = field(default_factory=Greedy)
    rows = 2

    def decider(self) -> Any:
        return _Scripted(self)


class _Scripted:
    def __init__(self, strategy: Scripted) -> None:
        self.strategy, self.wants_hidden = strategy, strategy.wants_hidden
        self.left = list(strategy.script)

    def decide(self, rows: Any) -> Decision:
        self.strategy.hidden.append([(row.hidden, row.logits) for row in rows])
        decision = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(decision, Exception):
            raise decision
        return decision


QUIET = Decision((Continuation(0, (5,)),))

NOTE = Waiting(77)  # an event is an event
