"""A workload: requests that arrive over time, the same ones however they are batched."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import ranges
from .draw import new_seed
from .request import Request
from .strategies import LARGEST_SEED, Sampling

REQUESTS = (2, 32)
LENGTHS = (1, 64)  # new tokens of one request
SLOTS = (1, 8)
LONGEST_SPREAD = 30.0  # seconds from the first arrival to the last


@dataclass(frozen=True)
class Arrival:
    """One request and when it comes.

    Attributes:
        number: 1 for the first to arrive, and so on.
        prompt: the text to continue.
        tokens: how many new ones it takes, exactly: end tokens end nothing.
        arrival_s: seconds after the first.
        seed: of its draws.
    """

    number: int
    prompt: str
    tokens: int
    arrival_s: float
    seed: int

    def request(self) -> Request:
        return Request(
            prompt=self.prompt,
            strategy=Sampling(seed=self.seed),
            max_new_tokens=self.tokens,
            num_candidates=1,
            ignore_eos=True,
        )


@dataclass(frozen=True)
class Workload:
    """What is to be served, in the order of arrival, and in how many slots.

    Attributes:
        seed: gives the same workload again.
    """

    arrivals: tuple[Arrival, ...]
    slots: int
    seed: int

    @classmethod
    def drawn(
        cls,
        prompts: Sequence[str],
        requests: Any,
        shortest: Any,
        longest: Any,
        spread_s: Any,
        slots: Any,
        seed: Any = None,
    ) -> Workload:
        """A workload by chance.

        Args:
            prompts: what the requests begin with; taken in turns, in a drawn order.
            requests: how many.
            shortest, longest: bounds of their lengths in tokens; any between is as likely.
            spread_s: seconds over which they arrive; 0 is all at once. The first comes at 0, the
                others at independent moments between, as those of a Poisson process of which the
                number is known.
            slots: how many are served at the same time.
            seed: of the drawing, and of the requests' own seeds; None picks one.

        Raises:
            FieldError: a value outside its range.
        """
        requests = ranges.whole("requests", requests, *REQUESTS)
        shortest = ranges.whole("shortest", shortest, *LENGTHS)
        longest = ranges.whole("longest", longest, shortest, LENGTHS[1])
        spread_s = ranges.number("spread_s", spread_s, 0, LONGEST_SPREAD)
        slots = ranges.whole("slots", slots, *SLOTS)
        seed = new_seed() if seed is None else ranges.whole("seed", seed, 0, LARGEST_SEED)
        chance = random.Random(seed)
        moments = sorted(chance.uniform(0, spread_s) for _ in range(requests - 1))
        order = chance.sample(list(prompts), len(prompts))
        arrivals = tuple(
            Arrival(
                number=place + 1,
                prompt=order[place % len(order)],
                tokens=chance.randint(shortest, longest),
                arrival_s=moment,
                seed=chance.randrange(2**32),
            )
            for place, moment in enumerate((0.0, *moments))
        )
        return cls(arrivals, slots, seed)
