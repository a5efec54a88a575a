"""Tokens a second of the engine with full reports, against transformers, in one run.

    python tests/bench/decode.py [--model ID] [--tokens 64] [--rounds 3]

Every lane decodes the same prompt greedily to the same length with the same weights, one lane
after the other, the round repeated so that a disturbance hits all alike. Printed: the median of
the rounds, its spread, and the ratio to `transformers.generate`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import fair
import torch
from transformers import GenerationConfig

from model import Engine, Greedy, Request, Sampling
from model.backbone import Feed

PROMPT = "The history of the lighthouse begins with a"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with Engine.load(chosen.model, precision="fp32") as engine:
        made = fair.lane(engine, lambda: lanes(engine, chosen.tokens))
        rates = measure(engine, made, chosen.tokens, chosen.rounds)
        print(f"{engine.name}, {engine.device}, fp32, {torch.get_num_threads()} threads, ", end="")
        print(f"{chosen.tokens} new tokens, {chosen.rounds} rounds\n")
        table(rates)


def lanes(engine: Engine, tokens: int) -> dict[str, Callable[[], int]]:
    """Name to a function that decodes; each returns how many tokens it wrote."""
    model = engine.reference_model()
    ids = torch.tensor([engine.tokenize(Request(prompt=PROMPT))], device=model.device)
    # No end token: every lane writes as many tokens, without a processor that holds it back.
    endless = {"max_new_tokens": tokens, "eos_token_id": None, "pad_token_id": 0}

    def generate(**options) -> int:
        config = GenerationConfig(do_sample=False, **endless, **options)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        out = out if isinstance(out, torch.Tensor) else out.sequences
        return out.shape[1] - ids.shape[1]

    def stream(strategy, candidates: int = 20) -> int:
        request = Request(
            prompt=PROMPT,
            strategy=strategy,
            max_new_tokens=tokens,
            num_candidates=candidates,
            ignore_eos=True,
        )
        run = engine.stream(request)
        for _ in run:
            pass
        engine.loop.kept.shrink(0)  # the next round runs its prompt again, as generate does
        return len(run.steps)

    def backbone() -> int:
        """The engine's forward passes and nothing else: what the reports are compared with."""
        feed = ids[0].tolist()
        slot = engine.backbone.slots.take(len(feed) + tokens, len(feed))
        for _ in range(tokens):
            (output,) = engine.backbone.forward([Feed(feed, slot)])
            feed = [int(output.logits[-1].argmax())]
        slot.release()
        return tokens

    knobs = Sampling(temperature=0.8, top_k=50, top_p=0.95, repetition_penalty=1.1, seed=1)
    return {
        "transformers.generate": generate,
        "… with output_logits": lambda: generate(
            output_logits=True, output_scores=True, return_dict_in_generate=True
        ),
        "… without KV cache": lambda: generate(use_cache=False),
        "forward passes alone, no reports": backbone,
        "engine, greedy, full reports": lambda: stream(Greedy()),
        "engine, greedy, one candidate": lambda: stream(Greedy(), 1),
        "engine, all knobs, full reports": lambda: stream(knobs),
    }


def measure(
    engine: Engine, lanes: dict[str, Callable[[], int]], tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Tokens a second of every lane in every round; an unmeasured round comes first."""
    rates: dict[str, list[float]] = {name: [] for name in lanes}
    for number in range(rounds + 1):
        for name, lane in lanes.items():
            start = time.perf_counter()
            written = fair.lane(engine, lane)
            seconds = time.perf_counter() - start
            if written != tokens:
                raise RuntimeError(f"{name} wrote {written} tokens, not {tokens}")
            if number:
                rates[name].append(written / seconds)
    return rates


def table(rates: dict[str, list[float]]) -> None:
    base = statistics.median(next(iter(rates.values())))
    print(f"| {'lane':<32} | tok/s | spread | ratio |\n| --- | ---: | ---: | ---: |")
    for name, values in rates.items():
        middle = statistics.median(values)
        spread = f"{min(values):.1f}–{max(values):.1f}"
        print(f"| {name:<32} | {middle:.1f} | {spread} | {middle / base:.2f} |")


if __name__ == "__main__":
    main()
