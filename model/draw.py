"""The draw: one uniform number for every place in a text.

A sampled token is where this number lands on the ruler of cumulative probability
(`Distribution.at`). That is cheap, can be drawn on screen, and makes a seeded run reproducible:
the number depends on the seed and the place alone, not on the platform, the thread, or who else
is being served, and any of them can be had without those before it.

`torch.multinomial` offers none of this: it needs more than a millisecond for a row of 49,152
probabilities, its generator is a hidden state that everything drawn before has moved, and its
result can't be shown as one number on a scale.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from operator import index


def uniform(seed: int, position: int, trial: int = 0) -> float:
    """The uniform number of a place, in [0, 1) with 53 random bits.

    Args:
        seed: of the run; any whole number.
        position: how many tokens come before, prompt included.
        trial: 0 is the draw that the run uses; others draw the same step again.

    Returns:
        The first 8 bytes of BLAKE2b (RFC 7693) over the text `"seed:position:trial"` as a
        little-endian integer, its upper 53 bits divided by 2⁵³.
    """
    place = f"{index(seed)}:{index(position)}:{index(trial)}".encode("ascii")
    bits = int.from_bytes(blake2b(place, digest_size=8).digest(), "little")
    return (bits >> 11) * 2.0**-53


def new_seed() -> int:
    """A fresh seed from the operating system, 0 … 2³² − 1: short to type, exact in JavaScript."""
    return secrets.randbits(32)
