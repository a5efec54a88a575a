"""Many streams at once: the engine with full reports against what transformers has, in one run.

    python tests/bench/concurrency.py [--precision fp32|bf16|both] [--tokens 64] [--rounds 3]

Same weights, same precision, same prompts (ragged, 5 to 60 tokens), as many new tokens for each.
Lanes run one after the other and the round is repeated, so that a disturbance hits all alike;
ratios are taken within a round. `static, equal prompts` is the static batch that the ratios mean:
as many prompt tokens in all, but every prompt equally long, so that it pads nothing. It is the
strongest of its kind and knows all its work beforehand; the padded one gets the ragged prompts.

The engine's tokens are timed where a thread reads them, one thread a stream; the peers' where
`generate` has them. `joining` is the same load, but each stream begins at a random moment within
half of the time that all together took, so that its tokens a second hold a beginning and an end at
which only some are there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import fair
import torch
from peers import Peers
from streams import Lane, Lanes, consumed, equal, joining, lengths, percentile, prompts
from transformers import logging

from model import Engine

STREAMS = (1, 8, 32)
ALONE = 4  # prompts of the lane one after the other: its rate is the same for any number
PEERS = ("static, equal prompts", "generate_batch", "one after the other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--precision", choices=("fp32", "bf16", "both"), default="both")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    logging.set_verbosity_error()
    precisions = ("fp32", "bf16") if chosen.precision == "both" else (chosen.precision,)
    for precision in precisions:
        with Engine.load(chosen.model, precision=precision) as engine:
            print(f"{engine.name}, {engine.device}, {precision}, ", end="")
            print(
                f"{torch.get_num_threads()} threads, {chosen.tokens} new tokens a stream, ", end=""
            )
            print(f"{chosen.rounds} rounds\n", flush=True)
            peers = fair.lane(engine, partial(Peers, engine, chosen.tokens))
            rounds = measure(engine, lanes(engine, peers, chosen.tokens), chosen.rounds)
        table(rounds)
        ratios(rounds)


def lanes(engine: Engine, peers: Peers, tokens: int) -> Lanes:
    """Name to what runs it in the round of this number."""
    made: Lanes = {}

    def ragged(streams: int, number: int) -> list[list[int]]:
        return prompts(engine, lengths(streams), number)

    def add(name: str, lane) -> None:
        made[name] = lane

    add(PEERS[2], lambda number: peers.one_after_the_other(ragged(max(STREAMS), number)[:ALONE]))
    for streams in STREAMS:
        if streams > 1:
            even = equal(lengths(streams))
            add(
                f"{PEERS[0]}, {streams}",
                lambda number, even=even: peers.static(prompts(engine, even, number)),
            )
            add(
                f"static, padded, {streams}",
                lambda number, streams=streams: peers.static(ragged(streams, number)),
            )
            add(
                f"{PEERS[1]}, {streams}",
                lambda number, streams=streams: peers.continuous(ragged(streams, number)),
            )
        add(
            f"engine, {streams}",
            lambda number, streams=streams: consumed(engine, ragged(streams, number), tokens),
        )
    most = max(STREAMS)
    add(
        f"forward passes alone, {most}",
        lambda number: peers.forward_passes(prompts(engine, equal(lengths(most)), number)),
    )
    took: list[float] = []  # how long all together took, of late

    def together(number: int) -> Lane:
        lane = consumed(engine, ragged(most, number), tokens)
        took.append(lane.seconds)
        return lane

    def joined(number: int) -> Lane:
        # Prompts of their own: those of this round are in the kept caches.
        asked = ragged(most, number + 100)
        return consumed(engine, asked, tokens, joining(most, took[-1] / 2, number))

    made[f"engine, {most}"] = together
    add(f"engine, {most}, joining", joined)
    return made


def measure(engine: Engine, lanes: Lanes, rounds: int) -> dict[str, list[Lane]]:
    """Every lane in every round; an unmeasured round comes first."""
    measured: dict[str, list[Lane]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, lane in lanes.items():
            result = fair.lane(engine, partial(lane, number))
            if number:
                measured[name].append(result)
            print(f"  round {number}, {name}: {result.rate:.1f}", file=sys.stderr, flush=True)
    return measured


def table(rounds: dict[str, list[Lane]]) -> None:
    """Medians of the rounds; token times in ms, of all streams of all rounds."""
    print("| lane | tok/s | spread | between tokens p50 | p95 | first token p50 | p95 |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, measured in rounds.items():
        rates = [lane.rate for lane in measured]
        gaps = [gap for lane in measured for gap in lane.gaps]
        first = [wait for lane in measured for wait in lane.first]
        cells = [
            f"{statistics.median(rates):.1f}",
            f"{min(rates):.1f}–{max(rates):.1f}",
            *(f"{1000 * percentile(gaps, percent):.1f}" for percent in (50, 95)),
            *(f"{1000 * percentile(first, percent):.0f}" for percent in (50, 95)),
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\ntimes in ms; first token: from the request, so in a static lane all wait alike,")
    print(f"and one after the other is that of the first {ALONE}\n")


def ratios(rounds: dict[str, list[Lane]]) -> None:
    """How the engine compares, round by round."""
    print("| engine over | streams | median | spread |\n| --- | ---: | ---: | ---: |")
    for streams in STREAMS:
        for peer in PEERS:
            name = peer if peer == PEERS[2] else f"{peer}, {streams}"
            if name not in rounds:
                continue
            pairs = zip(rounds[f"engine, {streams}"], rounds[name], strict=True)
            values = [ours.rate / theirs.rate for ours, theirs in pairs]
            middle, low, high = statistics.median(values), min(values), max(values)
            print(f"| {peer} | {streams} | {middle:.2f} | {low:.2f}–{high:.2f} |")
    print(flush=True)


if __name__ == "__main__":
    main()
