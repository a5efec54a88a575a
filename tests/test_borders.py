"""The borders between the rooms of the project, as they are drawn in its design."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOP = {
    "app.py",
    "playground",
    "model",
    "tests",
    "requirements.txt",
    "README.md",
    "LICENSE",
    "pyproject.toml",
}
PAGE_ONLY = {"gradio", "gradio_client", "plotly", "pandas"}
ENGINE_ONLY = {"torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf"}
NO_NOUNS = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "lib", "stuff"}


def files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, at the top, inside functions, or by a string."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parent.parts
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            yield node.lineno, ".".join(filter(None, (above, node.module)))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("import_module", "__import__", "importorskip"):
                yield node.lineno, str(node.args[0].value)


def crossings(paths: list[Path], forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for line, name in imports(path)
        if name.split(".")[0] in forbidden
    ]


def test_the_engine_knows_no_page() -> None:
    assert len(files("model")) > 10
    assert crossings(files("model"), PAGE_ONLY | {"playground", "app", "tests"}) == []


def test_the_page_knows_no_tensors() -> None:
    assert len(files("playground")) > 5
    page = [*files("playground"), ROOT / "app.py"]
    assert crossings(page, ENGINE_ONLY | {"tests"}) == []


def test_the_page_uses_the_public_surface_of_the_engine() -> None:
    inside = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files("playground")
        for line, name in imports(path)
        if name.startswith("model.")
    ]
    assert inside == []


def test_the_flags_of_the_app_need_no_model() -> None:
    """`app.py --help` and a wrong flag answer at once: neither torch nor gradio is loaded."""
    code = (
        "import sys, app; app.arguments([]);"
        "print(sorted({'torch', 'transformers', 'gradio', 'plotly'} & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert told.stdout.strip() == "[]", told.stderr


def test_rooms_are_named_by_nouns_of_the_field() -> None:
    named = {part for path in files("model", "playground", "tests") for part in path.parts}
    stems = {path.stem for path in files("model", "playground", "tests")}
    assert not (named | stems) & NO_NOUNS


def listed() -> set[str]:
    """Names at the top that are part of the project, or would be with the next `git add`."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        # An archive or an image of the project holds just what was put into it; which files of a
        # working tree belong to it (and not to a virtual environment, a cache) git alone knows.
        pytest.skip("this copy has no git repository to ask which files are the project's")
    told = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split("/")[0] for name in told.stdout.split("\0") if name}


def test_the_top_holds_what_the_owner_asked_for() -> None:
    top = {name for name in listed() if not name.startswith(".")}
    assert top - TOP == set()
    assert {"app.py", "playground", "model", "tests"} <= top


def test_imports_are_read_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of imports itself, so that an empty list above means something."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    room = tmp_path / "model" / "inner"
    room.mkdir(parents=True)
    written = room / "x.py"
    written.write_text(
        "import a, b.c as d\nfrom e.f import g\nfrom . import h\nfrom ..i import j\n"
        "def k():\n    import plotly.io\n    importlib.import_module('pandas')\n"
    )
    names = [name for _, name in sorted(imports(written))]
    assert names == ["a", "b.c", "e.f", "model.inner", "model.i", "plotly.io", "pandas"]
    assert len(crossings([written], PAGE_ONLY)) == 2
