"""Tiny random models of real architectures, and a small real tokenizer: transformers' own classes
with two layers, so that a test of the whole engine takes milliseconds."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from model import Engine

VOCAB = 300
WIDTH = 32
SPREAD = 0.4  # initializer range: wide enough that some tokens are far likelier than others
CONTEXT = 1024
WINDOW = 16  # of the architectures with sliding attention
START, END = "<|start|>", "<|end|>"
CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CORPUS = [
    "The capital of France is Paris, and the cat is on the mat; the dog isn't there.",
    "Türkiye'nin başkenti Ankara'dır. Deniz kıyısında ılık bir gün.",
    "once upon a time there was an old man and the sea",
]
_LLAMA = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_MAKERS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, _LLAMA),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, _LLAMA),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {"n_embd": WIDTH, "n_layer": 2, "n_head": 4}),
    "gpt_neox": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig,
        _LLAMA | {"num_key_value_heads": 4},
    ),
    "mistral": (MistralForCausalLM, MistralConfig, _LLAMA | {"sliding_window": WINDOW}),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        _LLAMA
        | {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}
ARCHITECTURES = tuple(_MAKERS)
# Attention of their own kind, so that their rows run one after the other: ALiBi, and soft caps
# with sliding windows.
_OTHERS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "bloom": (BloomForCausalLM, BloomConfig, {"hidden_size": WIDTH, "n_layer": 2, "n_head": 4}),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        _LLAMA | {"head_dim": 8, "sliding_window": WINDOW, "attn_logit_softcapping": 5.0},
    ),
}
UNPACKED = tuple(_OTHERS)


@cache
def tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE that knows every byte, two special tokens and a few words."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=START,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = CHAT if chat else None
    return made


@cache
def model(architecture: str = "llama", context: int = CONTEXT) -> PreTrainedModel:
    """The same weights every time. It has no end token; `ending` gives it some."""
    made_by, config_class, sizes = (_MAKERS | _OTHERS)[architecture]
    config = config_class(
        **sizes,
        vocab_size=VOCAB,
        max_position_embeddings=context,
        initializer_range=SPREAD,
        bos_token_id=tokenizer().bos_token_id,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
        attn_implementation="eager" if architecture in UNPACKED else "sdpa",
    )
    torch.manual_seed(7)
    return made_by(config).eval()


def ending(whole: PreTrainedModel, *ends: int) -> PreTrainedModel:
    """The same model, weights shared, with these end tokens."""
    made = copy.copy(whole)
    made.generation_config = copy.deepcopy(whole.generation_config)
    made.generation_config.eos_token_id = list(ends)
    return made


def engine(
    architecture: str = "llama",
    *,
    context: int = CONTEXT,
    ends: tuple[int, ...] = (),
    chat: bool = True,
    **limits: Any,
) -> Engine:
    """An engine on a tiny model. Without `ends` it has no end token, so runs reach their limit."""
    whole = model(architecture, context)
    return Engine(ending(whole, *ends) if ends else whole, tokenizer(chat), **limits)
