"""How far company changes a result: the same requests alone and among others, step by step.

    python tests/bench/independence.py [--model ID] [--requests 32] [--tokens 48] [--precision both]

Requests of mixed lengths, knobs and seeds are decoded alone, one after the other, and then all
together, joining at different moments. Printed: how many steps are equal to the last bit, how many
in their token, and how far probabilities are apart at most. Where bits differ, a near-tie may fall
the other way, and from there on the texts are different ones: such steps are counted apart.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from model import Engine, Greedy, Request, Sampling, Step

PROMPTS = (
    "The history of the lighthouse begins with a",
    "Once upon a time",
    "A recipe for bread: take flour, water, salt and yeast, and then",
    "The three laws of motion say that " * 8,
    "def fibonacci(n):",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--precision", choices=("fp32", "bf16", "both"), default="both")
    chosen = parser.parse_args()
    precisions = ("fp32", "bf16") if chosen.precision == "both" else (chosen.precision,)
    print("| precision | kept apart | steps | same bits | same token | apart by at most |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for precision in precisions:
        with Engine.load(chosen.model, precision=precision) as engine:
            row(engine, precision, requests(chosen.requests, chosen.tokens))


def requests(count: int, tokens: int) -> list[Request]:
    """Greedy every fourth, else sampling; no two alike."""
    return [
        Request(
            prompt=PROMPTS[n % len(PROMPTS)],
            strategy=Greedy()
            if n % 4 == 0
            else Sampling(temperature=(0.7, 1.0, 1.3)[n % 3], top_k=40 * (n % 2), seed=n),
            max_new_tokens=tokens - n % 7,
            ignore_eos=True,
        )
        for n in range(count)
    ]


def row(engine: Engine, precision: str, asked: list[Request]) -> None:
    alone = []
    for request in asked:
        engine.loop.kept.shrink(0)
        alone.append(steps(engine.generate(request).events))
    chance = random.Random(7)
    runs = []
    for request in asked:
        runs.append(engine.stream(request))
        time.sleep(chance.uniform(0, 0.1))
    together = [steps(run) for run in runs]
    total = bits = tokens = 0
    apart = 0.0
    for mine, theirs in zip(alone, together, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            total += 1
            bits += a == b
            apart = max(apart, abs(a.raw_prob - b.raw_prob) if a.token_id == b.token_id else 0)
            if a.token_id != b.token_id:  # from here on it is another text
                break
            tokens += 1
    kept_apart = "yes" if engine.backbone.alone else "no"
    print(f"| {precision} | {kept_apart} | {total} | {bits} | {tokens} | {apart:.1e} |", flush=True)


def steps(events) -> list[Step]:
    """The steps, without the time that they took."""
    return [replace(event, duration_s=0.0) for event in events if isinstance(event, Step)]


if __name__ == "__main__":
    main()
