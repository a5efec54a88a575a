"""From a name to a model: what can be loaded, what is refused, and what it says then."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_gguf
import torch
from hub_server import HubServer
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from model import loading, weights
from model.catalogue import Catalogue, Entry, HubSource, catalogue
from model.errors import ModelUnavailable
from model.loading import load, prefetch, ready

ROOT = Path(__file__).parents[1]
OWN_CACHE = os.environ.get("PLAYGROUND_CACHE", "")
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


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache for the module: the tiny GGUF is converted once."""
    place = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAYGROUND_CACHE", str(place))
        patch.setattr(constants, "HF_HUB_CACHE", str(place / "hub"))
        # Nobody is at home there: a test that asks the hub by accident fails at once.
        patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        yield place


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own") / "Own.gguf"
    tiny_gguf.write_gguf(path, eot=True)
    return path


@pytest.fixture(scope="module")
def tiny(gguf_file) -> loading.Loaded:
    return load(str(gguf_file))


@pytest.fixture
def saved(tiny, tmp_path):
    """Saves a model, with the tiny tokenizer beside it, into a folder."""

    def save(model, name: str = "saved") -> Path:
        folder = tmp_path / name
        model.save_pretrained(folder)
        tiny.tokenizer.save_pretrained(folder)
        return folder

    return save


def refusal(name: object) -> str:
    """The reason why `name` is not available: short, in one line."""
    with pytest.raises(ModelUnavailable) as caught:
        load(str(name))
    assert "\n" not in caught.value.reason
    assert len(caught.value.reason) < 500
    return caught.value.reason


# --- a GGUF file


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


# --- a folder


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


# --- what is refused


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


# --- the hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield server
    server.close()


@pytest.fixture
def files(saved) -> dict[str, bytes]:
    folder = saved(MODELS["llama"]())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_hub_model_is_fetched_once_and_then_needs_no_network(hub, files, monkeypatch):
    hub.repos["owner/name"] = files
    said = []
    assert not ready("owner/name")
    prefetch("owner/name", lambda *what: said.append(what))
    assert {stage for stage, _ in said} == {"download"}
    assert all(0 <= fraction <= 1 for _, fraction in said)
    hub.close()
    hub.asked.clear()
    monkeypatch.setattr(socket, "socket", None)
    assert ready("owner/name")
    assert load("owner/name").info.id == "owner/name"
    assert hub.asked == []


def test_of_a_hub_model_only_plain_files_are_fetched(hub, files):
    harmful = [
        "pytorch_model.bin",
        "model.pt",
        "modeling.py",
        "onnx/model.safetensors",
        "x.msgpack",
    ]
    hub.repos["owner/name"] = files | dict.fromkeys(harmful, b"harm")
    folder = prefetch("owner/name")
    assert {path.name for path in folder.iterdir()} == set(files)
    assert not [path for path in hub.asked if path.endswith(tuple(harmful))]


def test_a_download_that_was_cut_off_is_not_taken_for_the_model(hub, files):
    hub.repos["owner/name"] = files
    folder = prefetch("owner/name")
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        shutil.copy(folder / name, folder / "kept")
        (folder / name).unlink()
        assert not ready("owner/name")
        (folder / "kept").rename(folder / name)
    assert ready("owner/name")


def test_a_repository_of_gguf_files_gives_the_best_of_them(hub, gguf_file):
    content = gguf_file.read_bytes()
    hub.repos["owner/name-gguf"] = {
        "a-Q2_K.gguf": b"",
        "a-Q8_0.gguf": content,
        "a-F16-00001-of-00002.gguf": b"",
        "mmproj-Q8_0.gguf": b"",
    }
    info = load("owner/name-gguf").info
    assert info.gguf.name == "a-Q8_0.gguf"
    assert info.title == "Tiny Llama"
    assert not [path for path in hub.asked if path.endswith("Q2_K.gguf")]
    hub.close()
    assert ready("owner/name-gguf")
    assert load("owner/name-gguf").info == info


def test_a_repository_of_pickles_is_refused(hub, files):
    del files["model.safetensors"]
    hub.repos["owner/name"] = files | {"pytorch_model.bin": b"harm"}
    assert "pickled" in refusal("owner/name")
    assert not [path for path in hub.asked if path.endswith(".bin")]


def test_a_repository_that_is_not_there(hub):
    assert "no model owner/name" in refusal("owner/name")


def test_a_repository_that_asks_for_consent(hub):
    hub.gated.add("owner/name")
    assert "accept its terms" in refusal("owner/name")


def test_without_a_network_it_says_so_soon(hub):
    hub.close()
    began = time.monotonic()
    assert "can't be reached" in refusal("owner/name")
    assert "can't be reached" in refusal("gpt2")
    assert time.monotonic() - began < 10


def test_where_the_person_forbids_the_network_it_says_so(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refusal("owner/name")


def test_a_model_larger_than_the_disk_is_not_begun(hub, files, monkeypatch):
    hub.repos["owner/name"] = files
    usage = shutil.disk_usage(ROOT)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    assert "HF_HOME" in refusal("owner/name")
    assert not [path for path in hub.asked if "/resolve/" in path]


def test_a_catalogue_model_of_the_hub_keeps_its_catalogue_facts(hub, files, monkeypatch):
    entry = Entry("mine", "Mine", "base", "MIT", ("tr",), 1, 1, HubSource("owner/Name"))
    monkeypatch.setattr(loading, "catalogue", lambda: Catalogue("mine", (entry,)))
    hub.repos["owner/Name"] = files
    for name in ("Mine", "OWNER/name"):
        info = load(name).info
        assert (info.id, info.title, info.licence) == ("mine", "Mine", "MIT")
        assert (info.kind, info.languages) == ("base", ("tr",))
        assert ready(name)


# --- the default model, for real


@pytest.fixture(scope="module")
def default():
    """The real default model, from the user's own cache; fetched where it isn't there yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAYGROUND_CACHE", OWN_CACHE)  # empty means unset
        return load(catalogue().default_id)


@pytest.mark.default_model
def test_the_default_model_is_what_it_says(default):
    info = default.info
    assert (info.id, info.licence, info.kind) == ("smollm2-135m-instruct", "Apache-2.0", "instruct")
    assert info.parameters == catalogue().default.parameters
    assert len(default.tokenizer) == default.model.config.vocab_size == 49_152
    assert default.model.generation_config.eos_token_id == 2
    assert default.tokenizer.eos_token == "<|im_end|>"
    assert weights.sha256_of(info.gguf) == catalogue().default.source.sha256
    assert (info.folder / "LICENSE").read_text().lstrip().startswith("Apache License")


@pytest.mark.default_model
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


@pytest.mark.default_model
def test_the_default_model_writes_what_transformers_writes_from_the_file(default):
    """The converted folder against transformers' own reading of the same GGUF."""
    reference = AutoModelForCausalLM.from_pretrained(
        default.info.folder, gguf_file=default.info.gguf.name, dtype=torch.float32
    )
    prompt = default.tokenizer("The capital of France is", return_tensors="pt")
    settings = {"max_new_tokens": 24, "do_sample": False}
    with torch.inference_mode():
        written = default.model.generate(**prompt, **settings)
        expected = reference.generate(**prompt, **settings)
        assert torch.equal(default.model(**prompt).logits, reference(**prompt).logits)
    assert torch.equal(written, expected)
    assert "Paris" in default.tokenizer.decode(written[0])


@pytest.mark.default_model
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
