"""Visitors with a real browser: they press Generate and Stop, turn knobs, reload and close."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from running_app import CHROMIUM

from .asks import OPENINGS, TRACES
from .users import Heard

PATIENCE = 90.0  # seconds until a page must have opened, written a token, or settled
STATE = "window.playground.stage.state()"
SETTLED = f"!{STATE}.running"
FIRST_TOKEN = """() => new Promise((resolve) => {
  window.playground.reset();
  setTimeout(() => {
    const start = performance.now();
    document.querySelector("#generate").click();
    const look = () => {
      const alert = document.querySelector(".stage .alert");
      if (document.querySelector(".stage .chip[data-index]")) resolve(performance.now() - start);
      else if (alert && alert.innerText.trim()) resolve(alert.innerText);
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, 200);
})"""
KNOB = """(value) => {
  const knob = document.querySelector("#knob-temperature input[type=range]");
  knob.value = value;
  knob.dispatchEvent(new Event("input", { bubbles: true }));
}"""


class Visitor:
    """Comes, writes, stops, changes things, reloads, leaves; and comes again.

    Args:
        browser: playwright's.
        record: file to which what was seen is added, a line each.
    """

    def __init__(self, browser: Any, url: str, who: str, record: Path) -> None:
        self.browser, self.url, self.who, self.record = browser, url, who, record
        self.draw = random.Random(who)
        self.errors: list[str] = []

    async def live(self, until: float, thinking_s: float) -> None:
        while time.time() < until:
            heard = Heard(self.who, "page")
            self.errors = []
            try:
                await asyncio.wait_for(self._visit(heard, until, thinking_s), 4 * PATIENCE)
            except Exception as error:  # what a browser says when it gives up
                heard.problems.append(f"{type(error).__name__}: {str(error)[:300]}")
                self._tell(heard)

    async def _visit(self, heard: Heard, until: float, thinking_s: float) -> None:
        language = self.draw.choice(("en-US", "tr-TR"))
        context = await self.browser.new_context(locale=language)
        try:
            page = await context.new_page()
            page.set_default_timeout(1000 * PATIENCE)
            page.on("pageerror", lambda error: self.errors.append(str(error)[:300]))
            await self._open(page)
            for _ in range(self.draw.randint(1, 6)):
                if time.time() > until:
                    break
                await asyncio.sleep(self.draw.uniform(0, 2 * thinking_s))
                await self._write(page)
                if self.draw.random() < 0.25:  # also in the middle of a text
                    await page.reload()
                    await self._open(page, again=True)
        finally:
            await context.close()  # often while it decodes

    async def _open(self, page: Any, again: bool = False) -> None:
        heard, start = Heard(self.who, "page reload" if again else "page open"), time.monotonic()
        if not again:
            await page.goto(self.url)
        await page.wait_for_function("window.playground?.stage")
        heard.total_s, heard.outcome = time.monotonic() - start, "finished"
        self._tell(heard)

    async def _write(self, page: Any) -> None:
        """One text: its first token, then whatever this visitor does with the rest."""
        heard, start = Heard(self.who, "page"), time.monotonic()
        opening = f"{self.draw.randint(1, 10**6)}. {self.draw.choice(OPENINGS)}"
        await page.locator("#prompt textarea").fill(opening)
        first = await asyncio.wait_for(page.evaluate(FIRST_TOKEN), PATIENCE)
        if isinstance(first, str):
            heard.outcome, heard.said = "said", first
        else:
            heard.first_s, heard.outcome = first / 1000, "finished"
        await asyncio.sleep(self.draw.uniform(0, 2))
        act = self.draw.choice(("watch", "stop", "stop", "knobs", "leave"))
        if act == "knobs":
            for _ in range(5):
                await page.evaluate(KNOB, self.draw.uniform(0.2, 1.8))
                await asyncio.sleep(0.2)
        if act == "stop":
            await page.evaluate("window.playground.stop()")
            heard.outcome = "stopped"
        if act != "leave":
            await page.wait_for_function(SETTLED)
        text = await page.evaluate("document.body.innerText")
        if TRACES.search(text):
            heard.problems.append("a page shows what belongs in a log")
        heard.problems += [f"error in the page: {error}" for error in self.errors]
        self.errors = []
        heard.total_s = time.monotonic() - start
        self._tell(heard)

    def _tell(self, heard: Heard) -> None:
        with self.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(heard)) + "\n")


def live(url: str, count: int, folder: Path, until: float, thinking_s: float) -> None:
    """The process of all visitors; they share a browser and nothing else."""
    asyncio.run(_live(url, count, folder, until, thinking_s))


async def _live(url: str, count: int, folder: Path, until: float, thinking_s: float) -> None:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        visitors = [
            Visitor(browser, url, f"page {n}", folder / f"page-{n}.jsonl") for n in range(count)
        ]
        await asyncio.gather(*(visitor.live(until, thinking_s) for visitor in visitors))
        await browser.close()
