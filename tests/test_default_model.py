"""The default model, for real: what it is, what it writes, and the text of its tokens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import TEXTS, any_text, decoded, quick, whole
from transformers import AutoModelForCausalLM

from model import weights
from model.catalogue import catalogue
from model.loading import load
from model.token_text import TokenText

pytestmark = [pytest.mark.default_model, pytest.mark.usefixtures("models_cache")]
ROOT = Path(__file__).parents[1]
OWN_CACHE = os.environ.get("PLAYGROUND_CACHE", "")


@pytest.fixture(scope="module")
def default():
    """The real default model, from the user's own cache; fetched where it isn't there yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAYGROUND_CACHE", OWN_CACHE)  # empty means unset
        return load(catalogue().default_id)


def test_the_default_model_is_what_it_says(default):
    info = default.info
    assert (info.id, info.licence, info.kind) == ("smollm2-135m-instruct", "Apache-2.0", "instruct")
    assert info.parameters == catalogue().default.parameters
    assert len(default.tokenizer) == default.model.config.vocab_size == 49_152
    assert default.model.generation_config.eos_token_id == 2
    assert default.tokenizer.eos_token == "<|im_end|>"
    assert weights.sha256_of(info.gguf) == catalogue().default.source.sha256
    assert (info.folder / "LICENSE").read_text().lstrip().startswith("Apache License")


def test_the_default_model_reads_text_as_its_authors_do(default):
    tokenizer = default.tokenizer
    assert tokenizer("The capital of France is").input_ids == [504, 3575, 282, 4649, 314]
    assert tokenizer.convert_ids_to_tokens(tokenizer("a   12").input_ids) == ["a", "ĠĠĠ", "1", "2"]
    for text in ("  leading", "\n\n\tx", "İstanbul'da ışık", "🧑‍🚀 𓀀", "\x00", "½ ٣"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_the_default_model_writes_what_transformers_writes_from_the_file(default):
    """The converted folder against transformers' own reading of the same GGUF."""
    reference = AutoModelForCausalLM.from_pretrained(
        default.info.folder, gguf_file=default.info.gguf.name, dtype=torch.float32
    )
    prompt = default.tokenizer("The capital of France is", return_tensors="pt")
    settings = {"max_new_tokens": 8, "do_sample": False}
    with torch.inference_mode():
        written = default.model.generate(**prompt, **settings)
        expected = reference.generate(**prompt, **settings)
        assert torch.equal(default.model(**prompt).logits, reference(**prompt).logits)
    assert torch.equal(written, expected)
    assert "Paris" in default.tokenizer.decode(written[0])


def test_the_default_model_starts_without_a_network(default):
    code = (
        "import socket\n"
        "def no(*a, **k): raise AssertionError('the network was asked')\n"
        "socket.socket.connect = socket.getaddrinfo = no\n"
        "from model.loading import load, ready\n"
        "assert ready('smollm2-135m-instruct')\n"
        "load('smollm2-135m-instruct')\n"
    )
    environment = dict(os.environ, PLAYGROUND_CACHE=str(default.info.folder.parent))
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


@pytest.fixture(scope="module")
def real(default):
    return default.tokenizer


@pytest.fixture(scope="module")
def tokens(real):
    return TokenText(real, len(real))


class TestDefaultModel:
    def test_labels_are_unique_and_visible(self, tokens, real):
        labels = [tokens.label(i) for i in range(len(real))]
        assert len({unicodedata.normalize("NFKC", label) for label in labels}) == len(labels)
        assert all(label.isprintable() for label in labels)
        assert not any(" " in re.sub("⟨[^⟩]*⟩", "", label) for label in labels)
        assert tokens.label(real.eos_token_id) == "⟨|im_end|⟩"
        assert tokens.label(real.encode(" Paris")[0]) == "·Paris"

    @pytest.mark.parametrize("text", TEXTS)
    def test_holds_the_whole_prompt(self, tokens, real, text):
        assert tokens.text(real.encode(text)) == text

    @quick
    @given(text=any_text)
    def test_is_the_tokenizers_own_decode(self, tokens, real, text):
        ids = real.encode(text)  # this vocabulary has no token for some bytes and leaves them out
        assert whole("".join(tokens.pieces(ids))) == whole(decoded(real, ids))

    @quick
    @given(ids=st.lists(st.integers(17, 49151), max_size=40))
    def test_is_the_tokenizers_own_decode_of_arbitrary_ids(self, tokens, real, ids):
        assert whole(tokens.text(ids)) == whole(decoded(real, ids))
