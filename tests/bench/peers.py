"""transformers' own ways to serve many prompts, timed token by token: the peers of the engine.

Each function takes prompts and writes `tokens` new ones for each of them, greedily and without an
end token.
"""

from __future__ import annotations

import copy
import inspect
import logging
import time
from typing import Any

import torch
from streams import Lane
from transformers import DynamicCache, GenerationConfig, StoppingCriteria

from model import Engine

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Clock(StoppingCriteria):
    """Stops nothing; `generate` asks it after every token, so that it sees when they come."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Peers:
    """The same weights as the engine's, in its precision, in a plain transformers model."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        whole = copy.deepcopy(engine.reference_model())
        self.model = whole.to(engine.device, DTYPES[engine.precision]).eval()
        # Where a call says None, transformers takes the model's own.
        self.model.generation_config.eos_token_id = None
        self.tokens = tokens
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)

    def one_after_the_other(self, prompts: list[list[int]]) -> Lane:
        """`generate`, once for each. Who comes later waits for all before."""
        start, arrived = time.perf_counter(), []
        for prompt in prompts:
            arrived.append(self._generate([prompt]))
        return Lane.of([start] * len(prompts), arrived)

    def static(self, prompts: list[list[int]]) -> Lane:
        """`generate` of one batch; shorter prompts padded on the left and masked."""
        start = time.perf_counter()
        times = self._generate(prompts)
        return Lane.of([start] * len(prompts), [times] * len(prompts))

    def continuous(self, prompts: list[list[int]]) -> Lane:
        """`generate_batch`, its set-up and a first call not counted.

        Its manager is given up afterwards: its thread takes a good part of a core also while it
        has nothing to do.
        """
        self._batched(prompts)
        try:
            return self._batched(prompts)
        finally:
            self.model.destroy_cached_continuous_batching_manager()

    def _batched(self, prompts: list[list[int]]) -> Lane:
        start = time.perf_counter()
        made = self.model.generate_batch(
            prompts,
            generation_config=self._config(),
            record_timestamps=True,
            persistent_manager=True,
        )
        seconds = time.perf_counter() - start
        for result in made.values():
            self._check(len(result.generated_tokens))
        self._check(len(made), len(prompts))
        times = [result.timestamps for result in made.values()]
        timed = Lane.of([start] * len(prompts), times) if all(times) else Lane(0, 1.0)
        return Lane(len(prompts) * self.tokens, seconds, timed.first, timed.gaps)

    @torch.inference_mode()
    def forward_passes(self, prompts: list[list[int]]) -> Lane:
        """The model and an argmax, nothing else: what one batch of it could reach at most."""
        start = time.perf_counter()
        takes = inspect.signature(type(self.model).forward).parameters
        options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        cache = "cache" if "cache" in takes else "past_key_values"
        options[cache] = DynamicCache(config=self.model.config)
        feed, times = self._tensor(prompts), []
        for _ in range(self.tokens):
            logits = self.model(input_ids=feed, use_cache=True, **options).logits
            feed = logits[:, -1].argmax(-1, keepdim=True)
            times.append(time.perf_counter())
        return Lane.of([start] * len(prompts), [times] * len(prompts))

    def _generate(self, prompts: list[list[int]]) -> list[float]:
        """When the tokens of the batch came."""
        longest, clock = max(map(len, prompts)), Clock()
        padding = [longest - len(prompt) for prompt in prompts]
        ids = self._tensor([[0] * n + prompt for n, prompt in zip(padding, prompts, strict=True)])
        mask = torch.ones_like(ids)
        for row, count in zip(mask, padding, strict=True):
            row[:count] = 0
        out = self.model.generate(
            ids,
            attention_mask=mask,
            generation_config=self._config(),
            stopping_criteria=[clock],
        )
        self._check(out.shape[1] - longest)
        return clock.times

    def _config(self) -> GenerationConfig:
        """No end token: every lane writes as many, without a processor that holds it back."""
        return GenerationConfig(
            do_sample=False, max_new_tokens=self.tokens, eos_token_id=None, pad_token_id=0
        )

    def _tensor(self, rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor(rows, device=self.model.device)

    def _check(self, written: int, wanted: int | None = None) -> None:
        wanted = self.tokens if wanted is None else wanted
        if written != wanted:
            raise RuntimeError(f"a peer wrote {written}, not {wanted}")
