"""What many tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tiny_models
import torch
from running_app import CHROMIUM, RunningApp

from model import Engine, kv_cache


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
        options = {"locale": "en-US", "viewport": {"width": 1400, "height": 1000}, **options}
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(app.url)
        page.wait_for_function("window.playground", timeout=60_000)
        # The words come once the server has answered the page's first call.
        page.wait_for_timeout(400)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == [], "errors in the page's scripts"


@pytest.fixture
def page(visit):
    return visit()
