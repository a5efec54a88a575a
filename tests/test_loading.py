"""Loading: a model from a GGUF file and from a folder, with its values and its facts."""

from __future__ import annotations

import socket
import subprocess

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading_cases import MODELS
from safetensors.torch import load_file

from model.loading import load, ready

pytestmark = pytest.mark.usefixtures("models_cache")


# a GGUF file


def test_a_gguf_file_is_loaded_in_fp32_ready_to_decode(tiny, gguf_file):
    assert tiny.model.dtype == torch.float32
    assert tiny.model.device.type == "cpu"
    assert not tiny.model.training
    info = tiny.info
    assert (info.id, info.title, info.licence) == ("Own", "Tiny Llama", "cc0-1.0")
    assert (info.kind, info.languages) == ("instruct", ("en", "tr"))
    assert info.gguf == gguf_file.resolve()
    assert info.parameters == sum(weight.numel() for weight in tiny.model.parameters())


def test_every_end_token_that_the_file_names_is_kept(tiny):
    assert tiny.model.generation_config.eos_token_id == [2, 0]
    assert tiny.model.config.eos_token_id == [2, 0]


def test_its_chat_template_is_kept(tiny):
    text = tiny.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>"


def test_special_tokens_stay_whole(tiny):
    ids = tiny.tokenizer("a<|im_end|> b", add_special_tokens=False).input_ids
    assert ids.count(2) == 1
    assert tiny.tokenizer.all_special_ids


def test_digits_are_split_off_before_spaces_are_joined(tiny):
    """As SmolLM's own tokenizer does, and transformers' reading of a GGUF does not."""
    tokens = tiny.tokenizer.tokenize("x   5")
    assert tokens == ["x", "ĠĠĠ", "5"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_every_text_comes_back_as_it_went_in(tiny, text):
    ids = tiny.tokenizer(text, add_special_tokens=False).input_ids
    if not set(ids) & set(tiny.tokenizer.all_special_ids):
        assert tiny.tokenizer.decode(ids) == text


def test_a_second_start_loads_the_converted_folder(tiny, gguf_file, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(socket, "socket", None)
    assert ready(str(gguf_file))
    again = load(str(gguf_file))
    assert again.info == tiny.info
    for own, other in zip(tiny.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_a_folder_with_a_gguf_is_as_good_as_the_file(tiny, gguf_file):
    assert load(str(gguf_file.parent)).info.gguf == gguf_file.resolve()


def test_progress_ends_with_the_model_loaded(tiny, gguf_file):
    said = []
    load(str(gguf_file), progress=lambda *what: said.append(what))
    assert said == [("load", 0.0), ("load", 1.0)]


def test_nothing_is_printed(tiny, gguf_file, capfd):
    load(str(gguf_file))
    assert capfd.readouterr() == ("", "")


# a folder


@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_is_loaded_with_its_values(saved, kind):
    model = MODELS[kind]()
    folder = saved(model, kind)
    assert ready(str(folder))
    loaded = load(str(folder))
    assert (loaded.info.id, loaded.info.gguf) == (kind, None)
    assert loaded.info.kind == "instruct"  # the tokenizer beside it has a chat template
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value)


def test_half_precision_is_widened_exactly(saved):
    folder = saved(MODELS["llama"]().to(torch.bfloat16))
    loaded = load(str(folder))
    assert loaded.model.dtype == torch.float32
    for name, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(loaded.model.state_dict()[name], value.float())


def test_the_model_card_says_licence_and_languages(saved):
    folder = saved(MODELS["llama"]())
    (folder / "README.md").write_text("---\nlicense: mit\nlanguage: [en, tr]\n---\n# A model\n")
    info = load(str(folder)).info
    assert (info.licence, info.languages) == ("mit", ("en", "tr"))
    for nonsense in ("---\n: [\n---\n", "---\nlicense: [1]\nlanguage: {a: 1}\n---\n", "\0"):
        (folder / "README.md").write_text(nonsense)
        assert load(str(folder)).info.licence == ""


def test_without_a_chat_template_nobody_knows_what_kind_it_is(saved):
    folder = saved(MODELS["gpt2"]())
    (folder / "chat_template.jinja").unlink()
    assert load(str(folder)).info.kind == "unknown"
