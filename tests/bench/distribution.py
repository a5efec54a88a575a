"""Microseconds a step: processors, favourite, draw and candidates, beside transformers and torch.

    python tests/bench/distribution.py [--vocab 49152] [--context 512] [--spread 3.0]

Both sides get the same logits, in turn within one run; a figure is the median of the rounds, each
on logits of its own. Absolute times depend on the machine and on who else uses it: read the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

sys.path.insert(0, str(Path(__file__).parents[2]))

from model.distribution import Distribution
from model.draw import uniform
from model.processors import Processors

THEIRS = {
    "repetition_penalty": RepetitionPenaltyLogitsProcessor,
    "no_repeat_ngram_size": NoRepeatNGramLogitsProcessor,
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": TypicalLogitsWarper,
}

SETTINGS: list[dict[str, float]] = [
    {},
    {"temperature": 0.8},
    {"top_k": 50},
    {"top_p": 0.95},
    {"min_p": 0.05},
    {"typical_p": 0.9},
    {"repetition_penalty": 1.2},
    {"no_repeat_ngram_size": 3},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "temperature": 0.8,
        "top_k": 200,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.95,
    },
]


def microseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--context", type=int, default=512, help="tokens before this step")
    parser.add_argument("--spread", type=float, default=3.0, help="deviation of the random logits")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = [torch.randn(options.vocab) * options.spread for _ in range(options.rounds)]
    contexts = [torch.randint(0, options.vocab, (options.context,)) for _ in rows]

    def ours(row: torch.Tensor, context: list[int], processors: Processors) -> dict[str, float]:
        made: list[Distribution] = []
        times = {"processors": microseconds(lambda: processors(row[None], [context]))}
        times["build"] = microseconds(lambda: made.append(Distribution(row, processors, context)))
        offered = made[0]
        times["favourite"] = microseconds(offered.favourite)
        times["draw"] = microseconds(lambda: offered.at(uniform(7, len(context))))
        times["candidates(20)"] = microseconds(lambda: offered.candidates(20))
        times["entropies, kept"] = microseconds(
            lambda: (offered.entropy, offered.final_entropy, offered.kept, offered.kept_prob)
        )
        parts = ("build", "favourite", "draw", "candidates(20)", "entropies, kept")
        times["whole report"] = sum(times[part] for part in parts)
        return times

    def theirs(row: torch.Tensor, ids: torch.Tensor, chain: LogitsProcessorList) -> dict:
        scores: list[torch.Tensor] = []
        times = {"processors": microseconds(lambda: scores.append(chain(ids, row[None])))}
        times["draw"] = microseconds(
            lambda: torch.multinomial(torch.softmax(scores[0], dim=-1), num_samples=1)
        )
        return times

    columns = (
        "processors",
        "× theirs",
        "build",
        "favourite",
        "draw",
        "candidates(20)",
        "entropies, kept",
        "whole report",
        "theirs + multinomial",
        "ratio",
    )
    print(f"{options.vocab} tokens, {options.context} in the context, {options.rounds} rounds, µs")
    print("| settings | " + " | ".join(columns) + " |")
    print("|---" + "|---:" * len(columns) + "|")
    for settings in SETTINGS:
        processors = Processors.of(sampling=True, **settings)
        chain = LogitsProcessorList(THEIRS[name](value) for name, value in settings.items())
        mine: list[dict[str, float]] = []
        other: list[dict[str, float]] = []
        for row, ids in zip(rows, contexts, strict=True):
            mine.append(ours(row, ids.tolist(), processors))
            other.append(theirs(row, ids[None], chain))
        middle = {part: statistics.median(round_[part] for round_ in mine) for part in mine[0]}
        peer = {part: statistics.median(round_[part] for round_ in other) for part in other[0]}
        both = peer["processors"] + peer["draw"]
        cells = [
            f"{middle['processors']:.0f}",
            f"{middle['processors'] / peer['processors']:.2f}" if settings else "–",
            *(f"{middle[part]:.0f}" for part in columns[2:8]),
            f"{both:.0f}",
            f"{middle['whole report'] / both:.2f}",
        ]
        name = ", ".join(f"{field} {value:g}" for field, value in settings.items()) or "neutral"
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
