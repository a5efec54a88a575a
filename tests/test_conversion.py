"""Conversion: killed, run twice at once, of somebody's own file, and of files that are damaged."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_gguf
from tiny_gguf import left_behind, pretend

from model import weights
from model.catalogue import Entry
from model.errors import ModelUnavailable

pytestmark = pytest.mark.usefixtures("cache")
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


# runs that are killed, and runs at the same time


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


# somebody's own GGUF file


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
