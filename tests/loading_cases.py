"""What the tests of loading share: the smallest models, and how a refusal must read."""

from __future__ import annotations

import pytest
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from model.errors import ModelUnavailable
from model.loading import load

SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
LLAMA = {**SMALL, "num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**LLAMA)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    ),
}


def refusal(name: object) -> str:
    """The reason why `name` is not available: short, in one line."""
    with pytest.raises(ModelUnavailable) as caught:
        load(str(name))
    assert "\n" not in caught.value.reason
    assert len(caught.value.reason) < 500
    return caught.value.reason
