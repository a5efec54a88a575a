"""The hub: what is fetched from it, only once, and what is said where it can't be."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

import pytest
from hub_server import HubServer
from huggingface_hub import constants
from loading_cases import MODELS, refusal

from model import loading
from model.catalogue import Catalogue, Entry, HubSource
from model.loading import load, prefetch, ready

pytestmark = pytest.mark.usefixtures("models_cache")
ROOT = Path(__file__).parents[1]


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
