"""Refusals: what is no model for here, from a folder to a name, and what is said about it."""

from __future__ import annotations

import json
import os

import pytest
from loading_cases import LLAMA, MODELS, SMALL, refusal
from transformers import (
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from model.catalogue import catalogue
from model.loading import ready

pytestmark = pytest.mark.usefixtures("models_cache")


def test_a_folder_with_pickles_only(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pickled" in refusal(tmp_path)
    assert not ready(str(tmp_path))


def test_a_folder_with_nothing(tmp_path):
    assert "neither safetensors nor" in refusal(tmp_path)


def test_a_folder_without_a_config(saved):
    folder = saved(MODELS["llama"]())
    (folder / "config.json").unlink()
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model_type": "nosuch"}'])
def test_a_folder_with_a_bad_config(saved, content):
    folder = saved(MODELS["llama"]())
    (folder / "config.json").write_text(content)
    assert "config.json" in refusal(folder)


def test_a_folder_without_a_tokenizer(tmp_path):
    MODELS["llama"]().save_pretrained(tmp_path)
    assert "tokenizer" in refusal(tmp_path)


def test_a_missing_shard(saved):
    folder = saved(MODELS["llama"]())
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "neither safetensors nor" in refusal(folder)


def test_weights_cut_short(saved):
    folder = saved(MODELS["llama"]())
    os.truncate(folder / "model.safetensors", 5000)
    assert "can't be loaded" in refusal(folder)


def test_weights_that_would_be_random_numbers(saved):
    """transformers fills a missing output layer with random numbers and goes on."""
    folder = saved(LlamaModel(LlamaConfig(**LLAMA)))
    assert "lack" in refusal(folder)


def test_a_model_that_reads_both_ways(saved):
    folder = saved(BertLMHeadModel(BertConfig(**SMALL)))
    assert "bert model doesn't write from left to right" in refusal(folder)


def test_an_encoder_decoder(saved):
    config = T5Config(vocab_size=300, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2)
    assert "t5 model doesn't write" in refusal(saved(T5ForConditionalGeneration(config)))


def test_weights_quantized_for_another_program(saved):
    folder = saved(MODELS["llama"]())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    assert "quantized" in refusal(folder)


def test_code_that_comes_with_a_model_is_never_run(saved, tmp_path):
    folder = saved(MODELS["llama"]())
    mark = tmp_path / "code was run"
    (folder / "modeling.py").write_text(f"open({str(mark)!r}, 'w')\nclass Model: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "modeling.Model", "AutoModelForCausalLM": "modeling.Model"}
    config["model_type"] = "its_own"
    (folder / "config.json").write_text(json.dumps(config))
    refusal(folder)
    assert not mark.exists()


def test_a_file_that_is_no_gguf(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "fake.gguf").write_bytes(b"no such thing")
    assert ".gguf" in refusal(tmp_path / "model.safetensors")
    assert "it is no GGUF file" in refusal(tmp_path / "fake.gguf")


@pytest.mark.parametrize("name", ["./missing", "/missing", "a/b/c", "missing.gguf", "~/missing-7"])
def test_a_path_where_nothing_is(name):
    assert "no such folder or file" in refusal(name)
    assert not ready(name)


@pytest.mark.parametrize("name", ["owner/na me", "öwner/name", "owner/na\nme", "a/..", "-a/b"])
def test_a_name_that_the_hub_can_not_have(name):
    assert '"owner/name"' in refusal(name)
    assert not ready(name)


def test_an_unknown_id_names_what_is_near():
    assert "did you mean gemma-3-270m" in refusal("gemma3")


@pytest.mark.parametrize("name", ["", " ", "zzz", "x" * 100_000, "\0", "\ud800", "<script>", "🙈"])
def test_nonsense_names_the_ids_there_are(name):
    reason = refusal(name)
    assert all(entry.id in reason for entry in catalogue())
    assert not ready(name)
