"""The head of a GGUF file: its metadata, without the vocabulary and without the weights.

The gguf package reads a whole file, vocabulary included, in three to ten seconds; a title, a
licence and the end tokens are wanted in milliseconds. Format: the GGUF specification of ggml.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

# Value types of fixed size by their number in the format; 8 is a string and 9 an array.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_LONG = 64  # arrays longer than this (vocabulary, merges, scores) are skipped


def read_header(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file, key to value; long arrays are left out.

    Raises:
        ValueError: this is no GGUF file, or it is cut off.
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("it is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _metadata(data)
            except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
                raise ValueError("its head is damaged or cut off") from error


def _metadata(data: mmap.mmap) -> dict[str, Any]:
    version, _, count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ValueError(f"it is GGUF version {version}; only 2 and 3 can be read")
    metadata: dict[str, Any] = {}
    place = 24
    for _ in range(count):
        key, place = _string(data, place)
        (kind,) = struct.unpack_from("<I", data, place)
        value, place = _value(data, place + 4, kind)
        if value is not None:
            metadata[key] = value
    return metadata


def _value(data: mmap.mmap, place: int, kind: int) -> tuple[Any, int]:
    """(value, place after it); the value is None for an array that is too long."""
    if kind == _STRING:
        return _string(data, place)
    if kind != _ARRAY:
        form = "<" + _SCALARS[kind]
        return struct.unpack_from(form, data, place)[0], place + struct.calcsize(form)
    inner, count = struct.unpack_from("<IQ", data, place)
    place += 12
    if inner in _SCALARS and count > _LONG:
        return None, place + count * struct.calcsize("<" + _SCALARS[inner])
    values = []
    for _ in range(count):
        if inner == _STRING and count > _LONG:
            (length,) = struct.unpack_from("<Q", data, place)
            place += 8 + length
            continue
        value, place = _value(data, place, inner)
        values.append(value)
    return (values if count <= _LONG else None), place


def _string(data: mmap.mmap, place: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, place)
    place += 8
    if place + length > len(data):
        raise IndexError(place)
    return data[place : place + length].decode("utf-8"), place + length
