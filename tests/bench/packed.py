"""What the packed layout of linear layers brings: the same layers plain and packed, by rows.

    python tests/bench/packed.py [--model ID] [--rounds 5]

All linear layers of the model are passed through once, as one step does it, with 1, 8 and 32 rows,
in fp32 and in bf16; lanes take turns within a round. Printed: milliseconds a step (median), and how
many times as fast packed ones are.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from model import loading, packed_linear
from model.catalogue import catalogue

ROWS = (1, 8, 32)
LINEAR = (torch.nn.Linear, packed_linear.Conv1D, packed_linear.PackedLinear)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=catalogue().default_id)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    model = loading.load(chosen.model).model
    print(f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads")
    print("| precision | rows | plain, ms | packed, ms | times as fast |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        plain = copy.deepcopy(model).to(dtype)
        packed = copy.deepcopy(plain)
        if not packed_linear.pack(packed):
            print(f"| {precision} | | | not packed on this machine | |")
            continue
        for rows in ROWS:
            lanes = [layers(plain, rows), layers(packed, rows)]
            one, other = medians(lanes, chosen.rounds)
            print(f"| {precision} | {rows} | {one:.1f} | {other:.1f} | {one / other:.2f} |")


def layers(model: torch.nn.Module, rows: int) -> Callable[[], None]:
    """A pass through all linear layers, one after the other, with so many rows."""
    found = [module for module in model.modules() if type(module) in LINEAR]
    # An output head that shares its weight with the embeddings is one of them, too.
    width = {id(layer): _width(layer) for layer in found}
    states = {n: torch.randn(rows, n).to(model.dtype) for n in set(width.values())}

    @torch.inference_mode()
    def act() -> None:
        for layer in found:
            layer(states[width[id(layer)]])

    return act


def _width(layer: torch.nn.Module) -> int:
    return layer.nx if isinstance(layer, packed_linear.Conv1D) else layer.in_features


def medians(lanes: list[Callable[[], None]], rounds: int) -> list[float]:
    """Milliseconds of each."""
    took: list[list[float]] = [[] for _ in lanes]
    for lane in lanes:
        lane()
    for _ in range(rounds * 5):
        for lane, times in zip(lanes, took, strict=True):
            start = time.perf_counter()
            lane()
            times.append((time.perf_counter() - start) * 1000)
    return [statistics.median(times) for times in took]


if __name__ == "__main__":
    main()
