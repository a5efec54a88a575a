"""From a name to a model in memory: catalogue id, hub name, folder or GGUF file.

    >>> loaded = load("smollm2-135m-instruct")
    >>> loaded.info.title
    'SmolLM2 135M Instruct'

Only safetensors and GGUF are read, never pickles, and no code that comes with a model is run.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import hub, weights
from .catalogue import Entry, HubSource, WheelSource, catalogue, is_hub_name
from .errors import ModelUnavailable, shown
from .gguf_header import read_header

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a loaded model.

    Attributes:
        id: catalogue id, hub name, or name of the folder or file.
        title: its name for people.
        licence: short name; empty where nobody says.
        kind: "instruct", "base", or "unknown" (no catalogue entry and no chat template).
        languages: ISO 639 codes; empty where nobody says.
        folder: the transformers folder it was loaded from.
        gguf: the GGUF file with its quantized codes, None where there is none.
        parameters: number of weights, tied ones counted once.
    """

    id: str
    title: str
    licence: str
    kind: str
    languages: tuple[str, ...]
    folder: Path
    gguf: Path | None
    parameters: int


@dataclass(frozen=True)
class Loaded:
    """A model that can decode: fp32, on the CPU, in eval mode, with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    info: ModelInfo


@dataclass(frozen=True)
class _Place:
    """A model on this disk. `folder` is one that transformers reads."""

    id: str
    folder: Path
    gguf: Path | None = None
    entry: Entry | None = None


def load(name: str, *, progress: weights.Progress | None = None) -> Loaded:
    """Loads a model, fetching and converting it first where that is due.

    Args:
        name: a catalogue id (in any case), "owner/name" of the hub, a folder, or a .gguf file.
        progress: told what is going on (see `weights.Progress`).

    Raises:
        ModelUnavailable: with one sentence that says what to do.
    """
    report = progress or weights.silence
    with _quiet():
        place = _find(name, report)
        report("load", 0.0)
        loaded = _load(place)
        report("load", 1.0)
    return loaded


def prefetch(name: str, progress: weights.Progress | None = None) -> Path:
    """Makes a model ready for starts without a network; returns its folder. Raises as `load`."""
    with _quiet():
        return _find(name, progress or weights.silence).folder


def ready(name: str) -> bool:
    """Whether `load` would need no network. Never raises, never asks the network."""
    if entry := catalogue().find(name):
        if isinstance(entry.source, WheelSource):
            return weights.is_ready(entry)
        return hub.cached_snapshot(entry.source.repo) is not None
    if os.path.exists(name):
        path = Path(name)
        return _is_gguf(path) or hub.has_safetensors(path) or hub.best_gguf(path) is not None
    return is_hub_name(name) and hub.cached_snapshot(name) is not None


def _find(name: str, progress: weights.Progress) -> _Place:
    """Where the model is on this disk, once it is there."""
    if entry := catalogue().find(name):
        if isinstance(entry.source, HubSource):
            return _from_hub(entry.id, entry.source.repo, progress, entry)
        folder = weights.prepare(entry, progress)
        return _Place(entry.id, folder, folder / entry.source.file, entry)
    path = os.path.expanduser(name)
    if name and os.path.exists(path):
        return _from_path(name, Path(path), progress)
    if _looks_like_path(name):
        raise ModelUnavailable(name, "there is no such folder or file; check the path.")
    if "/" in name:
        if not is_hub_name(name):
            reason = 'a hub name has the form "owner/name", with letters, digits, ".", "_", "-".'
            raise ModelUnavailable(name, reason)
        return _from_hub(name, name, progress, None)
    if near := catalogue().near(name):
        reason = f"the catalogue has no such id; did you mean {', '.join(near)}?"
    else:
        ids = ", ".join(entry.id for entry in catalogue())
        reason = (
            f'choose one of {ids}, or give "owner/name" of the Hugging Face hub, a folder or a '
            ".gguf file."
        )
    raise ModelUnavailable(name, reason)


def _from_hub(id: str, repo: str, progress: weights.Progress, entry: Entry | None) -> _Place:
    folder = hub.cached_snapshot(repo) or hub.fetch_snapshot(id, repo, progress)
    if hub.has_safetensors(folder):
        return _Place(id, folder, None, entry)
    if gguf := hub.best_gguf(folder):
        return _Place(id, weights.prepare_file(id, gguf, progress), gguf, entry)
    raise ModelUnavailable(id, hub.no_weights(repo, os.listdir(folder)))


def _from_path(name: str, path: Path, progress: weights.Progress) -> _Place:
    if path.is_dir():
        # A folder's own name says more than the way to it ("." says nothing).
        id = path.resolve().name or name
        if hub.has_safetensors(path):
            return _Place(id, path)
        if not (gguf := hub.best_gguf(path)):
            raise ModelUnavailable(name, hub.no_weights("the folder", os.listdir(path)))
    elif _is_gguf(path):
        id, gguf = path.stem, path
    else:
        raise ModelUnavailable(name, "this file is no .gguf; give a model's folder, or a .gguf.")
    try:
        return _Place(id, weights.prepare_file(name, gguf, progress), gguf.resolve())
    except OSError as error:
        raise ModelUnavailable(name, f"{gguf} can't be read: {error.strerror}.") from error


def _load(place: _Place) -> Loaded:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _check_causal(place)
    safe = {"trust_remote_code": False, "local_files_only": True}
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            place.folder,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            **safe,
        )
    except Exception as error:  # a folder may be wrong in as many ways as transformers has classes
        raise ModelUnavailable(place.id, f"it can't be loaded: {_first_line(error)}") from error
    if missing := sorted(report["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise ModelUnavailable(
            place.id,
            f"its files lack {len(missing)} of its weights (among them {missing[0]}); it is no "
            "whole language model. Choose another, or fetch it again.",
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(place.folder, **safe)
    except Exception as error:
        raise ModelUnavailable(
            place.id, f"its tokenizer can't be loaded: {_first_line(error)}"
        ) from error
    if not len(tokenizer):
        raise ModelUnavailable(place.id, "its folder has no tokenizer (tokenizer.json).")
    model.eval()
    return Loaded(model, tokenizer, _info(place, model, tokenizer))


def _check_causal(place: _Place) -> None:
    """Refuses what transformers would load as a causal language model, but is none.

    Raises:
        ModelUnavailable: an encoder, an encoder-decoder, an unknown or a quantized architecture.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if not (place.folder / "config.json").is_file():
        raise ModelUnavailable(place.id, "its folder has no config.json; it is no model's folder.")
    try:
        config = AutoConfig.from_pretrained(
            place.folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        raise ModelUnavailable(
            place.id, f"its config.json can't be read: {_first_line(error)}"
        ) from error
    kind = config.model_type
    reads_both_ways = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if config.is_encoder_decoder or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        reads_both_ways = True
    if reads_both_ways and not getattr(config, "is_decoder", False):
        raise ModelUnavailable(
            place.id,
            f"a {kind} model doesn't write from left to right; choose a causal language model "
            "(GPT-2, Llama, Qwen, Gemma, …).",
        )
    if getattr(config, "quantization_config", None):
        raise ModelUnavailable(
            place.id,
            "its weights are quantized in a way that isn't read here; choose its safetensors in "
            "16 or 32 bits, or a GGUF file.",
        )


def _info(place: _Place, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> ModelInfo:
    count = sum(weight.numel() for weight in model.parameters())
    if entry := place.entry:
        about = (entry.title, entry.licence, entry.kind, entry.languages)
    else:
        title, licence, languages = _said_of(place)
        kind = "instruct" if tokenizer.chat_template else "unknown"
        about = (title or place.id, licence, kind, languages)
    return ModelInfo(place.id, *about, place.folder, place.gguf, count)


def _said_of(place: _Place) -> tuple[str, str, tuple[str, ...]]:
    """(title, licence, languages) as the GGUF file or the model card has them; "" or () else."""
    if place.gguf:
        header = read_header(place.gguf)
        name, licence = header.get("general.name"), header.get("general.license")
        return str(name or ""), str(licence or ""), _languages(header.get("general.languages"))
    card = place.folder / "README.md"
    if not card.is_file():
        return "", "", ()
    from huggingface_hub import ModelCard

    try:
        data = ModelCard(card.read_text("utf-8", "replace"), ignore_metadata_errors=True).data
    except Exception:  # whatever somebody wrote there, the model is no worse for it
        return "", "", ()
    licence = data.license if isinstance(data.license, str) else ""
    return "", licence, _languages(data.language)


def _languages(said: object) -> tuple[str, ...]:
    values = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return tuple(value for value in values if isinstance(value, str))


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" and path.is_file()


def _looks_like_path(name: str) -> bool:
    return bool(
        name.startswith((".", "/", "~", "\\"))
        or re.match(r"[A-Za-z]:[\\/]", name)
        or name.lower().endswith((".gguf", ".safetensors", "/"))
        or name.count("/") > 1
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return shown(lines[0] if lines else type(error).__name__, 300).strip("'\"")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the libraries' bars and advice to programmers off a person's console."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    bars, level, hub_level = (
        logging.is_progress_bar_enabled(),
        logging.get_verbosity(),
        hub_logging.get_verbosity(),
    )
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        hub_logging.set_verbosity(hub_level)
        if bars:
            logging.enable_progress_bar()
