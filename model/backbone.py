"""The backbone: token ids and a KV cache in, logits out.

The engine knows only the `Backbone` interface: rows feed one token or several, the caller says for
how many of them it wants logits, hidden states come on demand. Faster backbones replace
`TransformersBackbone` behind it.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from . import packed_linear
from .errors import ModelUnavailable
from .kv_cache import Layout, Slot, Slots
from .packed import NAME, NotPacked, PackedPass, keeps_apart

log = logging.getLogger(__name__)
# Two rows with which packed passes are tried out: ordinary tokens, no special ones.
TRIAL = ([504, 2001, 3002, 4003, 5004, 901, 77, 8000], [6005, 7006, 1200, 345, 777])
ALIKE = 0.95  # cosine of two rows of logits that differ by the rounding of 16-bit numbers


@dataclass(frozen=True, slots=True)
class Feed:
    """What one row sends through the model in one step.

    Attributes:
        token_ids: the tokens behind those that the slot holds; at least one.
        slot: the row's KV cache, extended by them.
        logits: for how many of the last tokens logits are wanted; may be 0.
    """

    token_ids: Sequence[int]
    slot: Slot
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
    """Attributes:
    alone: whether a row is the same to the last bit whoever else is in its pass.
    pass_tokens: about how many tokens of prompts a pass should take beside decode steps.
    """

    vocab_size: int
    max_length: int
    layout: Layout
    slots: Slots
    alone: bool
    pass_tokens: int

    def forward(self, feeds: Sequence[Feed], hidden: bool = False) -> list[Output]: ...


class TransformersBackbone:
    """Any decoder-only model of transformers, with no copy of its code.

    All rows of a pass go through it together (`model.packed`); where a model's attention can't be
    asked for that, one after the other. Which of the two is found out by trying.

    Args:
        model: its modules and settings are copied, its weights are not.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        config = model.config.get_text_config()
        _check(model, config)
        self.model = _twin(model.eval())
        head = model.get_output_embeddings()
        self.vocab_size = int(head.weight.shape[0])
        self.max_length = int(getattr(config, "max_position_embeddings", None) or 2**31)
        names = inspect.signature(type(model).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._keeps_logits = "logits_to_keep" in names
        expected, self.layout = self._try_plain()
        self._least = 1
        self.packs = self._try_packed(expected)
        packed = packed_linear.pack(self.model)
        if packed:
            self._least = packed_linear.LEAST
        self.alone = not self.packs or (
            packed
            and self.layout.dtype == torch.float32
            and keeps_apart(self.layout, config.num_attention_heads)
        )
        self.pass_tokens = 128 if self.model.device.type == "cpu" else 2048
        self.slots = Slots(self.layout, self.packs)

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], hidden: bool = False) -> list[Output]:
        """Logits of what these rows feed; their slots hold it then.

        Whatever is raised, the slots are as before, but for keys and values behind their length.
        """
        for feed in feeds:
            feed.slot.reserve(feed.slot.length + len(feed.token_ids))
        if self.packs:
            outputs = self._together(feeds, hidden)
        else:
            outputs = [self._row(feed, hidden) for feed in feeds]
        for feed in feeds:
            feed.slot.advance(len(feed.token_ids))
        return outputs

    def _together(self, feeds: Sequence[Feed], hidden: bool) -> list[Output]:
        packed = PackedPass([(feed.token_ids, feed.slot) for feed in feeds], self._least)
        wanted = [
            list(place[len(place) - feed.logits :])
            for place, feed in zip(packed.places, feeds, strict=True)
        ]
        rows = [row for its in wanted for row in its] or [0]
        rows += rows[:1] * (self._least - len(rows))
        device = self.model.device
        result = self._call(
            torch.tensor([packed.token_ids], device=device),
            packed,
            torch.tensor(rows, device=device),
            hidden,
            position_ids=torch.tensor([packed.positions], device=device),
            packed=packed,
        )
        if packed.attended != len(self.layout.layers):
            raise NotPacked(f"{packed.attended} of {len(self.layout.layers)} layers ask for it")
        logits = result.logits[0] if self._keeps_logits else result.logits[0, rows]
        logits = logits.float()
        states = result.hidden_states[-1][0, rows] if hidden else None
        outputs, start = [], 0
        for its in wanted:
            end = start + len(its)
            outputs.append(Output(logits[start:end], states[start:end] if hidden else None))
            start = end
        return outputs

    def _row(self, feed: Feed, hidden: bool) -> Output:
        ids = torch.tensor([list(feed.token_ids)], device=self.model.device)
        # 0 would keep the logits of all.
        result = self._call(ids, _RowCache(feed.slot), max(feed.logits, 1), hidden)
        wanted = slice(len(feed.token_ids) - feed.logits, None) if feed.logits else slice(0, 0)
        logits = result.logits[0, -feed.logits :] if feed.logits else result.logits[0, :0]
        states = result.hidden_states[-1][0, wanted] if hidden else None
        return Output(logits.float(), states)

    def _call(
        self, ids: torch.Tensor, cache: Cache, keep: int | torch.Tensor, hidden: bool, **extra: Any
    ) -> Any:
        if self._keeps_logits:
            extra["logits_to_keep"] = keep
        return self.model(
            input_ids=ids,
            use_cache=True,
            output_hidden_states=hidden,
            return_dict=True,
            **{self._cache_name: cache},
            **extra,
        )

    @torch.inference_mode()
    def _try_plain(self) -> tuple[list[torch.Tensor], Layout]:
        """The trial's last logits, one row after the other; and what its cache looks like.

        Raises:
            ModelUnavailable: not every layer keeps keys and values.
        """
        logits, cache = [], None
        for ids in TRIAL:
            cache = DynamicCache()
            tensor = torch.tensor([ids], device=self.model.device) % self.vocab_size
            logits.append(self._call(tensor, cache, 1, False).logits[0, -1].float())
        layers = []
        for layer in cache.layers:
            keys, values = layer.keys, layer.values
            if keys is None or keys.dim() != 4 or keys.shape[2] != len(ids):
                raise _unfit(self.model.config)
            layers.append((keys.shape[1], keys.shape[3], values.shape[3]))
        return logits, Layout(tuple(layers), keys.dtype, keys.device)

    def _try_packed(self, expected: list[torch.Tensor]) -> bool:
        """Whether packed passes give the same logits: prompts first, then a token each."""
        plain = self.model.config._attn_implementation
        slots = Slots(self.layout, True)
        rows = [slots.take(len(ids), len(ids) - 1) for ids in TRIAL]
        try:
            self.model.set_attn_implementation(NAME)
            for part in (slice(None, -1), slice(-1, None)):
                feeds = [
                    Feed([i % self.vocab_size for i in ids[part]], slot)
                    for ids, slot in zip(TRIAL, rows, strict=True)
                ]
                with torch.inference_mode():
                    outputs = self._together(feeds, False)
                for feed in feeds:
                    feed.slot.advance(len(feed.token_ids))
            alike = all(
                _alike(output.logits[-1], logits, self.layout.dtype)
                for output, logits in zip(outputs, expected, strict=True)
            )
        except NotPacked as odd:
            log.info("rows run one after the other: %s", odd)
            alike = False
        except Exception:  # a model that puts something else in front of its attention
            log.info("rows run one after the other", exc_info=True)
            alike = False
        if not alike:
            self.model.set_attn_implementation(plain)
        return alike


class _RowLayer(DynamicLayer):
    """One layer of one slot, as transformers' models see it."""

    def __init__(self, slot: Slot, index: int) -> None:
        super().__init__()
        self._room, self._length = slot.layer(index), slot.length
        self.is_initialized = True
        self._show()

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append. *Shape:* (1, heads, new, size) each; returns all of them, old and new."""
        end = self._length + keys.shape[2]
        for room, new in zip(self._room, (keys, values), strict=True):
            room[:, self._length : end] = new[0]
        self._length = end
        self._show()
        return self.keys, self.values

    def _show(self) -> None:
        self.keys, self.values = (room[None, :, : self._length] for room in self._room)


class _RowCache(Cache):
    """One slot as transformers' models see it."""

    def __init__(self, slot: Slot) -> None:
        super().__init__(layers=[_RowLayer(slot, i) for i in range(len(slot.bank.layers))])


def _alike(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether two rows of logits are the same but for rounding. *Shape:* (vocab,) each"""
    if dtype == torch.float32:
        return bool((one - other).abs().max() <= 1e-3 * other.abs().max())
    return torch.cosine_similarity(one - one.mean(), other - other.mean(), dim=0).item() > ALIKE


def _check(model: torch.nn.Module, config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    attends = hasattr(config, "num_attention_heads")  # state-space models don't
    odd = kinds - {"full_attention", "sliding_attention"}
    if config.is_encoder_decoder or model.get_output_embeddings() is None or not attends or odd:
        raise _unfit(config)


def _unfit(config: Any) -> ModelUnavailable:
    return ModelUnavailable(
        getattr(config, "model_type", "model"),
        "it is not a decoder-only transformer whose layers all keep keys and values",
    )


def _twin(model: torch.nn.Module) -> torch.nn.Module:
    """The same model with modules and settings of its own; weights are shared."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
