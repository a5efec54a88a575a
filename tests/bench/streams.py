"""What a lane of the concurrency benchmark gives: who asked for what, and when tokens arrived."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from model import Engine, Greedy, Request, Step

SHORTEST, LONGEST = 5, 60  # tokens of a prompt
SEED = 32
PASSAGE = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having "
    "nothing to do: once or twice she had peeped into the book her sister was reading, but it had "
    "no pictures or conversations in it, “and what is the use of a book,” thought Alice “without "
    "pictures or conversations?” So she was considering in her own mind (as well as she could, for "
    "the hot day made her feel very sleepy and stupid), whether the pleasure of making a "
    "daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a "
    "White Rabbit with pink eyes ran close by her. There was nothing so very remarkable in that; "
    "nor did Alice think it so very much out of the way to hear the Rabbit say to itself, “Oh "
    "dear! Oh dear! I shall be late!” But when the Rabbit actually took a watch out of its "
    "waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet, for it "
    "flashed across her mind that she had never before seen a rabbit with either a "
    "waistcoat-pocket, or a watch to take out of it, and burning with curiosity, she ran across "
    "the field after it, and fortunately was just in time to see it pop down a large rabbit-hole "
    "under the hedge."
)


@dataclass(frozen=True)
class Lane:
    """One lane in one round.

    Attributes:
        tokens: new tokens of all streams together.
        seconds: from the first request to the last token.
        first: a stream each, seconds from its request to its first token.
        gaps: seconds between two tokens of one stream, of all streams.
    """

    tokens: int
    seconds: float
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @classmethod
    def of(cls, started: Sequence[float], arrived: Sequence[Sequence[float]]) -> Lane:
        """From the clock: a stream each, when it was asked for and when its tokens came."""
        return cls(
            tokens=sum(map(len, arrived)),
            seconds=max(times[-1] for times in arrived) - min(started),
            first=[times[0] - start for start, times in zip(started, arrived, strict=True)],
            gaps=[b - a for times in arrived for a, b in itertools.pairwise(times)],
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent do not exceed; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def lengths(streams: int) -> list[int]:
    """Of their prompts, in tokens: ragged, and the same in every round."""
    draw = random.Random(SEED)
    return [draw.randint(SHORTEST, LONGEST) for _ in range(streams)]


def prompts(engine: Engine, wanted: Sequence[int], number: int) -> list[list[int]]:
    """Prompts of these lengths. No two begin alike, in whatever round: no kept cache serves them.

    Args:
        number: of the set; another set has other prompts of the same lengths.
    """
    words, made = PASSAGE.split(), []
    for stream, length in enumerate(wanted):
        count = 100 + number * len(wanted) + stream  # its digits are the first tokens
        start = (count * 13) % len(words)
        text = " ".join([f"{count}.", *words[start:], *words[:start]])
        made.append(list(engine.tokenize(Request(prompt=text)))[:length])
    return made


def equal(ragged: Sequence[int]) -> list[int]:
    """As many prompts with as many tokens together, all of one length."""
    return [round(statistics.mean(ragged))] * len(ragged)


def consumed(
    engine: Engine, asked: Sequence[list[int]], tokens: int, delays: Sequence[float] | None = None
) -> Lane:
    """Every prompt as a stream with full reports, each read by a thread of its own.

    Args:
        delays: seconds after which each of them joins; None lets all join at once.

    Raises:
        RuntimeError: a stream that did not write what it should, or began from a kept cache.
    """
    delays = delays or [0.0] * len(asked)
    started, arrived = [0.0] * len(asked), [[] for _ in asked]
    faults: list[BaseException] = []
    barrier = threading.Barrier(len(asked))

    def read(number: int) -> None:
        request = Request(
            token_ids=asked[number],
            strategy=Greedy(),
            max_new_tokens=tokens,
            num_candidates=20,
            ignore_eos=True,
        )
        try:
            barrier.wait()
            time.sleep(delays[number])
            started[number] = time.perf_counter()
            run = engine.stream(request)
            for event in run:
                if isinstance(event, Step):
                    arrived[number].append(time.perf_counter())
            if len(run.steps) != tokens:
                raise RuntimeError(f"{len(run.steps)} tokens, not {tokens}: {run.finished}")
            if run.finished.reused > len(asked[number]) // 2:
                raise RuntimeError(f"{run.finished.reused} tokens came from a kept cache")
        except BaseException as fault:
            faults.append(fault)

    readers = [threading.Thread(target=read, args=(n,)) for n in range(len(asked))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    if faults:
        raise faults[0]
    return Lane.of(started, arrived)


def joining(streams: int, within_s: float, number: int) -> list[float]:
    """When each of them joins: at random within so many seconds, the first at once."""
    draw = random.Random(number)
    return [0.0, *(draw.uniform(0, within_s) for _ in range(streams - 1))]


Lanes = dict[str, Callable[[int], Lane]]
