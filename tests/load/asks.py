"""What the users ask for: a limited number of requests, so that the same one is heard in many
companies and can be compared with what it gives alone; and things that must be refused.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


OPENINGS = (
    "The capital of France is",
    "Once upon a time there was an old lighthouse keeper who",
    "The Moon goes around the",
    "My favourite colour is",
    "Bir varmış bir yokmuş, deniz kıyısında",
    "def fibonacci(n):\n    ",
    "In a small village by the sea, people used to say that",
    "The recipe is simple: take two eggs, some flour and",
    "Why is the sky blue?",
    "😀 means",
    "Q: What is the KV cache?\nA:",
    "A",
)
FILLING = (
    "The old man looked at the sea",
    "and counted the waves,",
    "as he had done every day since the boats stopped coming;",
    "nobody in the village remembered why.",
)
STRATEGY = {
    "strategy": ("greedy", "sampling"),
    "temperature": (0.7, 1.0, 1.3),
    "top_k": (0, 5, 50),
    "top_p": (0.9, 1.0),
    "min_p": (0.0, 0.05),
    "repetition_penalty": (1.0, 1.2),
    "no_repeat_ngram_size": (0, 3),
}


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        key: names it among all others.
        kind: `"short"` or `"long"`, by its prompt.
        arguments: of `/generate`.
    """

    key: int
    kind: str
    arguments: dict[str, Any] = field(hash=False)

    @property
    def one(self) -> dict[str, Any]:
        """The same as arguments of `/next_token`: the first step of `/generate`."""
        left_out = ("prompt", "max_new_tokens", "stop")
        rest = {name: v for name, v in self.arguments.items() if name not in left_out}
        return {"text": self.arguments["prompt"], **rest}

    @property
    def text(self) -> dict[str, Any]:
        """The same as arguments of `/tokenize`."""
        return {"text": self.arguments["prompt"], "chat": self.arguments["chat"]}


def asks(count: int, long_words: int, most_tokens: int, seed: int = 3) -> list[Ask]:
    """Every one with another seed and another beginning of its prompt; one in six is long.

    Args:
        long_words: of the longest prompt.
        most_tokens: that one of them writes.
    """
    draw, made = random.Random(seed), []
    for key in range(count):
        long = key % 6 == 5
        prompt = f"{key}. {OPENINGS[key % len(OPENINGS)]}"
        if long:
            words = draw.randint(long_words // 2, long_words)
            while len(prompt.split()) < words:
                prompt += " " + draw.choice(FILLING)
        arguments = {
            "prompt": prompt,
            **{name: draw.choice(values) for name, values in STRATEGY.items()},
            "seed": 1000 + key,
            "max_new_tokens": draw.randint(4, max(4, most_tokens // (4 if long else 1))),
            "num_candidates": draw.choice((1, 10, 20, 50)),
            "stop": draw.choice((None, None, ["\n\n"])),
            "chat": not long and draw.random() < 0.2,
        }
        made.append(Ask(key, "long" if long else "short", arguments))
    return made


# What is sent, and what the sentence that comes back must hold.
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("/generate", {"prompt": "Hello", "temperature": -1}, "Temperature"),
    ("/generate", {"prompt": "Hello", "temperature": "hot"}, "hot"),
    ("/generate", {"prompt": "Hello", "top_p": 1.5, "language": "tr"}, "0 ile 1 arası"),
    ("/generate", {"prompt": "Hello", "top_k": 2.5}, "whole number"),
    ("/generate", {"prompt": "Hello", "strategy": "magic"}, "magic"),
    ("/generate", {"prompt": "Hello", "max_new_tokens": 0}, "Length"),
    ("/generate", {"prompt": "Hello", "num_candidates": 10**9}, "Candidates"),
    ("/generate", {"prompt": "Hello", "stop": [""]}, "Stop strings"),
    ("/generate", {"prompt": "Hello", "seed": -3}, "Seed"),
    ("/generate", {"prompt": 5}, "5"),
    ("/generate", {"prompt": "hello " * 30_000}, "tokens"),
    ("/next_token", {"text": "Hello", "min_p": 2}, "0 to 1"),
    ("/next_token", {"text": ["a", "b"]}, "Prompt"),
    ("/tokenize", {"text": "Hello", "chat": "yes"}, "Chat"),
)
TRACES = re.compile(r"Traceback|File \"|\.py\b|<class|0x[0-9a-f]{6}")
# Read and not imported: thirty users need no engine.
_SAID = json.loads((ROOT / "playground/locales/en.json").read_text("utf-8"))["errors"]
_BUSY = re.escape(_SAID["busy"]).replace(re.escape("{seconds}"), r"([\d,.]+)")
_LOST = re.escape(_SAID["unforeseen"]).replace(re.escape("{kind}"), r"\w+")


def busy(said: str) -> int | None:
    """The seconds to wait that a sentence names, where it says that the engine is busy."""
    found = re.fullmatch(_BUSY, said.strip())
    return int(re.sub(r"\D", "", found[1])) if found else None


def unforeseen(said: str) -> bool:
    """Whether it is the sentence for what nobody foresaw, or holds what only a log should."""
    return bool(re.search(_LOST, said) or TRACES.search(said)) or not said.strip()
