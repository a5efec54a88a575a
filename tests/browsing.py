"""What the tests in a browser share: nothing is read before it can be there."""

from __future__ import annotations

from playwright.sync_api import Page, expect

DESK = {"locale": "en-US", "viewport": {"width": 1400, "height": 1000}}
# Of an opening page: its words, and the example for its prompt.
ANSWERED = (
    "performance.getEntriesByType('resource')"
    ".filter(({ name }) => name.endsWith('/run/predict')).length >= 2"
)
FRAMES = "() => new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))"
expect.set_options(timeout=20_000)


def until(page: Page, condition: str) -> None:
    """Wait until that is true in the page."""
    page.wait_for_function(condition, timeout=60_000)


def drawn(page: Page) -> None:
    """What has come is on the screen."""
    page.evaluate(FRAMES)


def arrive(page: Page, url: str) -> None:
    """Open the page; what it asks for at first is answered."""
    page.goto(url)
    until(page, f"window.playground && {ANSWERED}")
    drawn(page)
