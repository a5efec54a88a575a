"""Models of the Hugging Face hub: safetensors or GGUF and plain text files, nothing that runs.

Files stay in the hub library's own cache, which other programs share; what is there already is
used without asking the network.
"""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .errors import ModelUnavailable

# Files of the top folder only: the others are copies for other programs (onnx/, original/, …).
_TEXT = ["*.json", "*.jinja", "*.txt", "*.model"]
_CARD = ["README.md", "LICENSE*"]
_LEFT_OUT = ["*/*", "consolidated*"]
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_TIMEOUT_S = 10.0
# Of several GGUF files in one repository: the one nearest to the original that is still small.
_PREFERRED = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_1", "q4_0", "f16", "bf16", "f32")


def cached_snapshot(repo: str) -> Path | None:
    """The folder of a repository that is complete on this disk, or None. Never asks the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    wanted = [*_TEXT, "*.safetensors"]
    try:
        folder = Path(
            snapshot_download(
                repo, allow_patterns=wanted, ignore_patterns=_LEFT_OUT, local_files_only=True
            )
        )
    except (HFValidationError, OSError):  # among them its LocalEntryNotFoundError
        return None
    return folder if has_safetensors(folder) or best_gguf(folder) else None


def fetch_snapshot(model: str, repo: str, progress: Callable[[str, float | None], None]) -> Path:
    """Downloads a repository's weights and text files; what is there already is kept.

    Args:
        model: what the person asked for, for the error.
        repo: "owner/name".
        progress: as in `weights`; the stage is "download".

    Raises:
        ModelUnavailable: no network, no such repository, closed to this person, pickled weights
            only, or a full disk.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.file_download import repo_folder_name

    # Only top-level files count, so one question tells what to fetch and how large it is.
    sizes = _asked(
        model,
        repo,
        lambda: {
            file.rfilename: file.size or 0
            for file in HfApi().model_info(repo, files_metadata=True, timeout=_TIMEOUT_S).siblings
            if "/" not in file.rfilename and not file.rfilename.startswith("consolidated")
        },
    )
    weights = [name for name in sizes if name.endswith(".safetensors")]
    if not weights:
        weights = [name] if (name := _preferred([n for n in sizes if n.endswith(".gguf")])) else []
    if not weights:
        raise ModelUnavailable(model, no_weights(repo, sizes))
    size = sum(sizes[name] for name in weights)
    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    blobs /= "blobs"
    before = _size(blobs)
    free = shutil.disk_usage(next(place for place in blobs.parents if place.exists())).free
    if free < size - before:
        raise ModelUnavailable(
            model,
            f"it takes {gigabytes(size)} and the disk of {constants.HF_HUB_CACHE} has "
            f"{gigabytes(free)} left; free some, or set HF_HOME to a folder on another disk.",
        )

    def download() -> str:
        return snapshot_download(
            repo,
            allow_patterns=[*_TEXT, *_CARD, *weights],
            ignore_patterns=_LEFT_OUT,
            etag_timeout=_TIMEOUT_S,
            tqdm_class=_silent_bar(),
        )

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(download)
        while not future.done():
            progress("download", min(1.0, (_size(blobs) - before) / max(1, size)))
            time.sleep(0.2)
    return Path(_asked(model, repo, future.result))


def has_safetensors(folder: Path) -> bool:
    """Whether the folder holds safetensors, every shard that an index names included."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, OSError):
            return False
        return all((folder / shard).is_file() for shard in shards)
    return any(folder.glob("*.safetensors"))


def best_gguf(folder: Path) -> Path | None:
    """The GGUF file of a folder to use, or None."""
    name = _preferred(sorted(path.name for path in folder.glob("*.gguf")))
    return folder / name if name else None


def no_weights(place: str, names) -> str:
    """The sentence for a place with no weights that can be read, given its file names."""
    if any(str(name).endswith(_PICKLES) for name in names):
        return (
            f"{place} holds pickled weights only (.bin, .pt), which can run any code when they are "
            "read; choose a model with safetensors or GGUF files."
        )
    return f"{place} holds neither safetensors nor a whole GGUF file."


def gigabytes(size: float) -> str:
    """A size for people: "0.8 GB"."""
    return f"{size / 1e9:.1f} GB"


def _preferred(names: list[str]) -> str | None:
    """Split files ("-00001-of-00003") and the picture part of a model ("mmproj") don't count."""
    whole = [name for name in names if "-of-" not in name and "mmproj" not in name.lower()]
    for kind in _PREFERRED:
        for name in whole:
            if kind in name.lower():
                return name
    return whole[0] if whole else None


def _asked(model: str, repo: str, question: Callable):
    """The answer of the hub, its refusals turned into sentences."""
    from huggingface_hub import errors

    try:
        return question()
    except errors.GatedRepoError as error:
        reason = (
            f"{repo} asks you to accept its terms first: do so on its page of the Hugging Face "
            "hub, then log in with `hf auth login`."
        )
        raise ModelUnavailable(model, reason) from error
    except errors.RepositoryNotFoundError as error:
        reason = f"the Hugging Face hub has no model {repo}, or not for everybody."
        raise ModelUnavailable(model, reason) from error
    except errors.OfflineModeIsEnabled as error:
        reason = f"{repo} is not on this disk and HF_HUB_OFFLINE forbids to fetch it."
        raise ModelUnavailable(model, reason) from error
    except Exception as error:
        # Which classes a lost connection raises is the business of the HTTP library of the day.
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            reason = "the disk of the hub's cache is full; free some space and start again."
        else:
            reason = (
                f"the Hugging Face hub can't be reached ({type(error).__name__}) and {repo} is not "
                "on this disk; check the network, or choose a model that is already here."
            )
        raise ModelUnavailable(model, reason) from error


def _size(blobs: Path) -> int:
    total = 0
    for path in blobs.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed since it was listed
            continue
    return total


def _silent_bar() -> type:
    from tqdm import tqdm

    class Silent(tqdm):
        def __init__(self, *args, **kwargs):
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

    return Silent
