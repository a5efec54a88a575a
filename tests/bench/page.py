"""How fast the page answers, in headless Chromium: click to first token, knob to redrawn bars.

    python tests/bench/page.py [--rounds 20]

Starts the app itself. Times are taken in the page, from the event to the first frame in which the
chip or the new bars stand in the document.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from running_app import CHROMIUM, RunningApp

UNTIL = """
(act, done) => new Promise((resolve) => {
  const start = performance.now();
  act();
  const look = () => done() ? resolve(performance.now() - start) : requestAnimationFrame(look);
  requestAnimationFrame(look);
})"""
FIRST_TOKEN = f"""({UNTIL})(
  () => document.querySelector("#generate").click(),
  () => document.querySelectorAll(".stage .chip[data-index]").length > 0)"""
KNOB = f"""(value) => {{
  const amounts = () => [...document.querySelectorAll(".stage .bar-row .amount")]
    .map((one) => one.textContent).join();
  const before = amounts();
  return ({UNTIL})(
    () => {{
      const knob = document.querySelector("#knob-temperature input[type=range]");
      knob.value = value;
      knob.dispatchEvent(new Event("input", {{ bubbles: true }}));
    }},
    () => amounts() !== before);
}}"""
SETTLED = "window.playground.stage.state().steps > 0 && !window.playground.stage.state().running"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        app = RunningApp(Path(folder) / "log.txt")
        try:
            clicks, knobs = measure(app, rounds)
        finally:
            app.stop()
    print("| ms | median | p95 | worst |\n| --- | ---: | ---: | ---: |")
    for name, times in (("click to first token", clicks), ("knob to redrawn bars", knobs)):
        ordered = sorted(times)
        p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
        print(f"| {name} | {statistics.median(times):.0f} | {p95:.0f} | {ordered[-1]:.0f} |")


def measure(app: RunningApp, rounds: int) -> tuple[list[float], list[float]]:
    from playwright.sync_api import sync_playwright

    clicks, knobs = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(app.url)
        page.wait_for_function("window.playground")
        for number in range(max(3, rounds // 4)):
            # A prompt of its own each time, so that no kept cache shortens the first step.
            page.locator("#prompt textarea").fill(f"On day {number * 37 + 11} of the voyage")
            page.evaluate("window.playground.reset()")
            page.wait_for_timeout(200)
            clicks.append(page.evaluate(FIRST_TOKEN))
            page.evaluate("window.playground.stop()")
            page.wait_for_function(SETTLED)
        for number in range(rounds):
            knobs.append(page.evaluate(KNOB, 0.3 + 1.5 * ((number * 7) % rounds) / rounds))
            page.wait_for_timeout(150)
        browser.close()
    return clicks, knobs


if __name__ == "__main__":
    main()
