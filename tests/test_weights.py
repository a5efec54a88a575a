"""Weights on disk: whole or not at all, made once, trusted afterwards, and where they are."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_gguf
from safetensors.numpy import load_file
from tiny_gguf import left_behind

from model import weights, wheels

pytestmark = pytest.mark.usefixtures("cache")


# the first start


def test_the_first_start_leaves_a_whole_folder(made, entry):
    folder = made[0] / entry.id
    manifest = json.loads((folder / weights.MANIFEST).read_text())
    names = {path.name for path in folder.iterdir()} - {weights.MANIFEST}
    assert set(manifest["files"]) == names
    assert {"tiny.gguf", "model.safetensors", "config.json", "generation_config.json"} <= names
    assert {"tokenizer.json", "chat_template.jinja", "NOTICE"} <= names
    for name, facts in manifest["files"].items():
        assert wheels.sha256_of(folder / name) == facts["sha256"]
    assert wheels.sha256_of(folder / "tiny.gguf") == entry.source.sha256


def test_nothing_else_stays(made, entry):
    assert not [name for name in left_behind(made[0]) if not name.startswith(entry.id)]


def test_others_on_the_machine_may_read_what_one_has_fetched(made, entry):
    folder = made[0] / entry.id
    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert modes == {(folder / "config.json").stat().st_mode}


def test_progress_goes_through_the_stages_and_never_back(made):
    said = made[1]
    assert list(dict.fromkeys(stage for stage, _ in said)) == ["download", "convert"]
    for stage in ("download", "convert"):
        fractions = [fraction for what, fraction in said if what == stage]
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0


def test_the_values_are_those_of_the_file_exactly(made, entry):
    folder = made[0] / entry.id
    values = load_file(folder / "model.safetensors")
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
        "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
        "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
        "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
        "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
        "output_norm.weight": "model.norm.weight",
    }
    # ggml keeps a head's rotary pairs side by side, transformers half a head apart.
    rotated = {
        "blk.0.attn_q.weight": ("model.layers.0.self_attn.q_proj.weight", tiny_gguf.HEADS),
        "blk.0.attn_k.weight": ("model.layers.0.self_attn.k_proj.weight", tiny_gguf.KV_HEADS),
    }
    assert set(values) == {*names.values(), *(name for name, _ in rotated.values())}
    for tensor in gguf.GGUFReader(folder / "tiny.gguf").tensors:
        own = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in rotated:
            name, heads = rotated[tensor.name]
            own = own.reshape(heads, -1, 2, tiny_gguf.WIDTH).swapaxes(1, 2)
            own = own.reshape(-1, tiny_gguf.WIDTH)
        else:
            name = names[tensor.name]
        assert values[name].dtype == np.float32
        np.testing.assert_array_equal(values[name], own)


# later starts


def test_a_later_start_asks_nobody_and_writes_nothing(ready_cache, entry, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("a later start must be alone with its disk")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr(Path, "mkdir", forbidden)
    assert weights.is_ready(entry)
    assert weights.prepare(entry, forbidden) == ready_cache / entry.id


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tiny.gguf"])
def test_a_file_cut_short_is_not_trusted(ready_cache, entry, name):
    path = ready_cache / entry.id / name
    os.truncate(path, path.stat().st_size - 1)
    assert not weights.is_ready(entry)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1}', '{"format": 0}'])
def test_a_damaged_manifest_is_not_trusted(ready_cache, entry, content):
    (ready_cache / entry.id / weights.MANIFEST).write_text(content)
    assert not weights.is_ready(entry)


def test_a_folder_made_from_another_file_is_not_trusted(ready_cache, entry):
    other = dataclasses.replace(entry.source, sha256="0" * 64)
    assert not weights.is_ready(dataclasses.replace(entry, source=other))


def test_a_bad_folder_is_made_anew_without_fetching_again(ready_cache, entry, close_the_shop):
    close_the_shop()
    target = ready_cache / entry.id / "model.safetensors"
    whole = target.read_bytes()
    os.truncate(target, 100)
    assert weights.prepare(entry) == ready_cache / entry.id
    assert weights.is_ready(entry)
    assert target.read_bytes() == whole


def test_a_bad_gguf_is_fetched_again(ready_cache, entry, no_conversion):
    target = ready_cache / entry.id / "tiny.gguf"
    content = bytearray(target.read_bytes())
    content[-1] ^= 1
    target.write_bytes(content[:-1])
    weights.prepare(entry)
    assert wheels.sha256_of(target) == entry.source.sha256


# where, and what is shown


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "{place}/decoding-playground"),
        ("linux", None, "~/.cache/decoding-playground"),
        ("darwin", None, "~/Library/Caches/decoding-playground"),
        ("win32", "LOCALAPPDATA", "{place}/decoding-playground"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    monkeypatch, tmp_path, platform, variable, expected
):
    for name in ("PLAYGROUND_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))
    wanted = Path(expected.format(place=tmp_path)).expanduser()
    assert weights.cache_folder() == wanted


def test_the_cache_is_where_the_person_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAYGROUND_CACHE", "here")
    assert weights.cache_folder() == tmp_path / "here"
    monkeypatch.setenv("PLAYGROUND_CACHE", "~/there")
    assert weights.cache_folder() == Path.home() / "there"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO) -> str:
    progress = weights.console_progress(stream)
    for percent in range(101):
        progress("download", percent / 100)
    progress("convert", None)
    progress("load", 0.0)
    progress("load", 1.0)
    return stream.getvalue()


def test_a_terminal_has_one_line_a_stage_rewritten():
    text = show(Terminal())
    assert text.count("\n") == 3
    assert text.count("\r") == 102  # 0 to 100 %, and the end of loading
    assert "Downloading the model: 57 %" in text
    assert text.endswith("\n")


def test_a_log_has_few_lines():
    lines = show(io.StringIO()).splitlines()
    assert len(lines) == 5 + 1 + 2
    assert lines[0] == "Downloading the model: 0 %"
    assert lines[4] == "Downloading the model: 100 %"
