"""Where and how precisely to compute, and how much memory that may take."""

from __future__ import annotations

import os
from typing import Any

import torch

from . import ranges
from .errors import FieldError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LARGEST_ON_CPU = 2 * 2**30  # bytes; more would take from everything else on a small machine


def device(name: Any) -> torch.device:
    """`"auto"` is CUDA, else Apple's MPS, else the CPU.

    Raises:
        FieldError: no such device on this machine.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    here = ["auto", "cpu"] + ["mps"] * mps
    here += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))] if cuda else []
    if isinstance(name, str) and name.startswith("cuda") and not cuda:
        allowed = "cpu or auto: there is no CUDA GPU on this machine"
        raise FieldError("device", name, allowed, "one_of_these", these=", ".join(here))
    if name not in here:
        allowed = f"{', '.join(here)} on this machine"
        raise FieldError("device", name, allowed, "one_of_these", these=", ".join(here))
    return torch.device(name)


def precision(name: Any, on: torch.device) -> str:
    """`"auto"` is bf16 on CUDA and fp32, the reference, elsewhere."""
    if name == "auto":
        return "bf16" if on.type == "cuda" else "fp32"
    if name not in list(DTYPES):  # a list: what was sent may have no hash
        these = ", ".join(["auto", *DTYPES])
        raise FieldError("precision", name, these, "one_of_these", these=these)
    return name


def cache_budget(nbytes: int | None, least: int, on: torch.device) -> int:
    """Bytes that all KV caches may take: what was asked for, else a part of the memory.

    Raises:
        FieldError: less than `least`, which the shortest run needs.
    """
    if nbytes is not None:
        return ranges.whole("cache_bytes", nbytes, least, 2**50)
    if on.type == "cuda":
        return torch.cuda.mem_get_info(on)[0] // 2
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(LARGEST_ON_CPU, memory // 4)
