"""What thirty watching pages cost the engine: tokens a second with and without them, in one run.

    python tests/bench/watching.py [--pages 30] [--rounds 3] [--seconds 6]

As many texts are decoded each time: first with nobody reading along, then each started by the
button Generate of a page of its own and streamed to it, as a browser would have it. The pages are
connections without a browser, in another process that runs at the lowest priority, since in a
classroom they are on other machines; what it takes from this one all the same is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import secrets
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx

PROMPTS = ("The history of the lighthouse begins with a", "Once upon a time", "A recipe for bread:")
LENGTH = 512  # longer than the time that is measured
SETTLE = 3.0  # seconds until everyone decodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--pages", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    chosen = parser.parse_args()
    from model import Engine
    from playground.page import page

    with Engine.load(chosen.model) as engine:
        blocks, options = page(engine, "en")
        _, address, _ = blocks.launch(quiet=True, prevent_thread_lock=True, **options)
        rows = []
        for _ in range(chosen.rounds):
            alone = unwatched(engine, chosen.pages, chosen.seconds)
            rows.append((alone, *watched(engine, address, chosen.pages, chosen.seconds)))
        print(f"{engine.name}, {engine.device}, {engine.precision}, {chosen.pages} texts at once\n")
        table(rows)
        blocks.close()


def unwatched(engine: Any, count: int, seconds: float) -> float:
    """Tokens a second while nobody reads along."""
    from model import Request, Sampling

    runs = [
        engine.stream(
            Request(
                prompt=PROMPTS[n % len(PROMPTS)],
                strategy=Sampling(seed=n),
                max_new_tokens=LENGTH,
                ignore_eos=True,
            )
        )
        for n in range(count)
    ]
    time.sleep(SETTLE)
    rate = tokens_a_second(engine, seconds)
    for run in runs:
        run.cancel()
    until_idle(engine)
    return rate


def watched(engine: Any, address: str, count: int, seconds: float) -> tuple[float, float, float]:
    """Tokens a second while pages watch; messages a second; CPU seconds a second of the pages."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=pages, args=(there, address, count), daemon=True
    )
    process.start()
    here.recv()  # they have all pressed the button
    time.sleep(SETTLE)
    here.send("count")
    before = here.recv()
    rate = tokens_a_second(engine, seconds)
    here.send("count")
    after = here.recv()
    here.send("leave")
    process.join()
    until_idle(engine)
    return rate, *((b - a) / seconds for a, b in zip(before, after, strict=True))


def tokens_a_second(engine: Any, seconds: float) -> float:
    start = time.perf_counter()
    time.sleep(seconds)
    end = time.perf_counter()
    turns = [turn for turn in engine.timeline() if start <= turn.start_s <= end]
    return sum(turn.written for turn in turns) / (end - start)


def until_idle(engine: Any) -> None:
    while engine.status().running or engine.status().waiting:
        time.sleep(0.05)


def pages(pipe: Any, address: str, count: int) -> None:
    """The pages, in a process of their own."""
    os.nice(19)
    asyncio.run(_pages(pipe, address.rstrip("/"), count))


async def _pages(pipe: Any, address: str, count: int) -> None:
    seen = [0]
    limits = httpx.Limits(max_connections=2 * count)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=None) as client:
        config = (await client.get("/config")).json()
        watching = [
            asyncio.create_task(_page(client, config, n % len(PROMPTS), seen)) for n in range(count)
        ]
        pipe.send("watching")
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv) == "count":
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send((seen[0], used.ru_utime + used.ru_stime))
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


async def _page(client: Any, config: dict[str, Any], prompt: int, seen: list[int]) -> None:
    """Press Generate and read along, again and again, as gradio's own client does."""
    parts = {part["id"]: part["props"] for part in config["components"]}
    button = next(i for i, props in parts.items() if props.get("elem_id") == "generate")
    event = next(
        event
        for event in config["dependencies"]
        if event["outputs"] and [button, "click"] in [list(t) for t in event["targets"]]
    )
    values = [parts[i].get("value") for i in event["inputs"]]
    for place, i in enumerate(event["inputs"]):
        if parts[i].get("elem_id") == "prompt":
            values[place] = PROMPTS[prompt]
        elif parts[i].get("maximum") == LENGTH:
            values[place] = LENGTH
    while True:
        session = secrets.token_hex(6)
        asked = {"data": values, "fn_index": event["id"], "session_hash": session}
        await client.post("/gradio_api/queue/join", json=asked)
        reading = {"session_hash": session}
        async with client.stream("GET", "/gradio_api/queue/data", params=reading) as answer:
            async for line in answer.aiter_lines():
                seen[0] += '"process_generating"' in line[:200]
                if '"process_completed"' in line or '"close_stream"' in line:
                    break


def table(rows: list[tuple[float, float, float, float]]) -> None:
    print("| | tokens/s | messages/s | CPU of the pages |")
    print("| --- | ---: | ---: | ---: |")
    alone, rate, messages, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"| nobody watches | {alone:.0f} | | |")
    print(f"| everybody watches | {rate:.0f} | {messages:.0f} | {cpu:.0%} of a core |")
    kept = [100 * row[1] / row[0] for row in rows]
    print(
        f"\nkept: {statistics.median(kept):.0f} % (rounds: {', '.join(f'{k:.0f}' for k in kept)})"
    )


if __name__ == "__main__":
    main()
