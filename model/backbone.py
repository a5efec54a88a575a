"""The backbone: token ids and a KV cache in, logits out.

The engine knows only the `Backbone` interface: rows feed one token or several, the caller says for
how many of them it wants logits, hidden states come on demand. Faster backbones replace
`TransformersBackbone` behind it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .errors import ModelUnavailable
from .kv_cache import Slot


@dataclass(frozen=True, slots=True)
class Feed:
    """What one row sends through the model in one step.

    Attributes:
        token_ids: the tokens behind those that the slot holds; at least one.
        slot: the row's KV cache, extended by them; None computes them without a cache.
        logits: for how many of the last tokens logits are wanted; may be 0.
    """

    token_ids: Sequence[int]
    slot: Slot | None
    logits: int = 1


@dataclass(frozen=True, slots=True)
class Output:
    """What comes back for one row.

    Attributes:
        logits: *Shape:* (wanted, vocab), fp32.
        hidden: the last layer's states after the final norm, from which the output embedding makes
            the logits, where they were asked for. *Shape:* (wanted, width)
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Backbone(Protocol):
    vocab_size: int
    max_length: int
    cache_bytes_per_token: int

    def slot(self) -> Slot: ...

    def forward(self, feeds: Sequence[Feed], hidden: bool = False) -> list[Output]: ...


class TransformersBackbone:
    """Any decoder-only model of transformers, with no copy of its code.

    Rows run one after the other, so none of them can change another's result.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model.eval()
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        attends = hasattr(config, "num_attention_heads")  # state-space models don't
        odd = kinds - {"full_attention", "sliding_attention"}
        head = model.get_output_embeddings()
        if config.is_encoder_decoder or head is None or not attends or odd:
            raise ModelUnavailable(
                getattr(config, "model_type", "model"),
                "it is not a decoder-only transformer whose layers all keep keys and values",
            )
        self.vocab_size = int(head.weight.shape[0])
        self.max_length = int(getattr(config, "max_position_embeddings", None) or 2**31)
        self.cache_bytes_per_token = _cache_bytes_per_token(config, model.dtype)
        names = inspect.signature(type(model).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._keeps_logits = "logits_to_keep" in names

    def slot(self) -> Slot:
        return Slot()

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], hidden: bool = False) -> list[Output]:
        return [self._row(feed, hidden) for feed in feeds]

    def _row(self, feed: Feed, hidden: bool) -> Output:
        ids = torch.tensor([list(feed.token_ids)], device=self.model.device)
        extra = {}
        if feed.slot is not None:
            extra[self._cache_name] = feed.slot.cache
        if self._keeps_logits:
            extra["logits_to_keep"] = max(feed.logits, 1)  # 0 would mean all
        result = self.model(
            input_ids=ids,
            use_cache=feed.slot is not None,
            output_hidden_states=hidden,
            return_dict=True,
            **extra,
        )
        wanted = slice(len(feed.token_ids) - feed.logits, None) if feed.logits else slice(0, 0)
        logits = result.logits[0, -feed.logits :] if feed.logits else result.logits[0, :0]
        states = result.hidden_states[-1][0, wanted] if hidden else None
        return Output(logits.float(), states)


def _cache_bytes_per_token(config, dtype: torch.dtype) -> int:
    """Keys and values of one token: 2 x layers x key-value heads x head size x bytes a number."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * kv_heads * head_dim * dtype.itemsize
