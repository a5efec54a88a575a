"""The part Batching in a real browser, on the real default model."""

from __future__ import annotations

import json
import re
import secrets
import time
import urllib.request

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.default_model]

STATE = "window.playgroundBatching.state()"
SMALL = {"requests": 5, "shortest": 2, "longest": 8, "slots": 2}


def opened(page, name: str = "Speed"):
    page.get_by_role("tab", name=name).click()
    page.wait_for_function("window.playgroundBatching", timeout=30_000)
    page.locator(".lab .lanes").first.wait_for()
    return page


def run(page, **values: float) -> None:
    for name, value in values.items():
        field = page.locator(f"#batching-{name} input[type=number]")
        field.fill(str(value))
        field.press("Tab")
    page.locator("#batching-run").click()


def over(page) -> dict:
    page.wait_for_function(f"{STATE}.lab.ended && !{STATE}.running", timeout=120_000)
    page.wait_for_timeout(200)
    return page.evaluate(STATE)["lab"]


def row(page, name: str) -> list[float]:
    """What the table says of one measure: static, continuous, ratio."""
    texts = page.locator(f".lab-measured tr[data-row={name}] td").all_inner_texts()
    return [float(re.sub(r"[^\d.]", "", text)) for text in texts]


def test_a_small_lab_is_drawn_and_its_table_says_what_was_measured(visit):
    page = opened(visit())
    assert page.locator("h1").inner_text() == "Why is it slow, and what helps?"
    assert page.get_by_text("Press Run both and watch.").is_visible()
    run(page, **SMALL)
    assert page.locator("#batching-stop").is_visible()
    assert not page.locator("#batching-run").is_visible()
    lab = over(page)
    assert page.locator("#batching-run").is_visible()
    for round_ in lab["rounds"]:
        picture = page.locator(f'.round[data-way="{round_["way"]}"]')
        assert picture.locator(".block").count() == SMALL["requests"]
        assert picture.locator(".idle").count() == SMALL["slots"]
        for passage in round_["passages"]:
            block = picture.locator(f'.block[data-number="{passage["number"]}"]')
            ticks = block.locator(".ticks").get_attribute("d").count("M")
            assert ticks == len(passage["steps"]) == passage["tokens"]
    static, continuous = (round_["measures"] for round_ in lab["rounds"])
    for name, field, scale, step in (
        ("throughput", "tokens_per_s", 1, 0.051),
        ("mean_wait", "mean_wait_s", 1, 0.0051),
        ("worst_wait", "worst_wait_s", 1, 0.0051),
        ("slot_use", "slot_use", 100, 0.51),
        ("total", "total_s", 1, 0.0051),
    ):
        first, second, ratio = row(page, name)
        assert first == pytest.approx(static[field] * scale, abs=step)
        assert second == pytest.approx(continuous[field] * scale, abs=step)
        assert ratio == pytest.approx(continuous[field] / static[field], abs=0.0051)


def test_the_sentence_is_true_of_what_was_measured(visit):
    page = opened(visit())
    run(page, **SMALL)
    static, continuous = (round_["measures"] for round_ in over(page)["rounds"])
    sentence = page.locator(".lab-state").inner_text()
    speed = continuous["tokens_per_s"] / static["tokens_per_s"]
    wait = continuous["mean_wait_s"] / static["mean_wait_s"]
    said, waited = sentence.split("; ")
    if speed >= 1.05:
        told = re.match(r"Continuous batching wrote ([\d.]+) times as many", said)
        assert float(told[1]) == pytest.approx(speed, abs=0.006)
    elif speed <= 0.95:
        assert said.startswith("Continuous batching wrote fewer")
    else:
        assert said.startswith("Both wrote about as many")
    seen = "instead of" if not 0.95 < wait < 1.05 else "about as soon"
    assert seen in waited
    assert ("later" in waited) == (wait >= 1.05)
    times = [float(number) for number in re.findall(r"[\d.]+(?= s)", waited)]
    measured = [static["mean_wait_s"], continuous["mean_wait_s"]]
    assert sorted(times) == pytest.approx(sorted(measured), abs=0.006)


def test_pictures_grow_on_one_axis_that_never_shrinks(visit):
    page = opened(visit())
    run(page, requests=6, shortest=12, longest=24, slots=2)
    seen = []
    while not page.evaluate(f"!!{STATE}.lab.ended"):
        seen.append(page.evaluate(f"[{STATE}.covered, document.querySelectorAll('.block').length]"))
        page.wait_for_timeout(100)
    assert seen == sorted(seen)
    assert len({blocks for _, blocks in seen}) > 3
    ends = page.evaluate("[...document.querySelectorAll('.lanes')].map((svg) => svg.clientWidth)")
    assert ends[0] == ends[1]


def test_stop_ends_it_at_once_and_run_comes_back(visit, app):
    page = opened(visit())
    run(page, requests=32, shortest=64, longest=64, slots=2)
    page.locator(".block").nth(1).wait_for()
    page.locator("#batching-stop").click()
    assert over(page)["ended"] == "stopped"
    assert page.locator(".lab-state").inner_text().startswith("Stopped by you.")
    assert page.locator("#batching-run").is_visible()
    assert app.idle(within_s=5)


def test_stop_pressed_before_the_first_news_is_not_lost(visit, app):
    page = opened(visit())
    for name, value in (("requests", 32), ("shortest", 64), ("longest", 64)):
        field = page.locator(f"#batching-{name} input[type=number]")
        field.fill(str(value))
        field.press("Tab")
    page.evaluate(
        """() => {
            const starting = window.playgroundBatching.starting;
            window.playgroundBatching.starting = () => {
                starting();
                window.playgroundBatching.stop();
            };
            document.querySelector("#batching-run").click();
        }"""
    )
    assert over(page)["ended"] == "stopped"
    assert app.idle(within_s=5)


def test_a_closed_page_stops_its_lab(visit, app):
    page = opened(visit())
    run(page, requests=32, shortest=64, longest=64)
    page.locator(".block").first.wait_for()
    page.close()
    assert app.idle(within_s=10)


def test_the_pointer_tells_of_a_text(visit):
    page = opened(visit())
    run(page, **SMALL)
    lab = over(page)
    page.locator('.round[data-way="continuous"] .block[data-number="2"] .body').hover()
    card = page.locator(".lab .tip")
    card.wait_for()
    text = lab["texts"][1]
    assert "Text 2" in card.inner_text()
    assert text["prompt"] in card.inner_text()
    assert f"{text['tokens']} of {text['tokens']}" in card.inner_text()


def test_others_who_write_meanwhile_are_told_of(visit):
    other = visit()
    other.locator("#max_new_tokens input[type=number]").fill("400")
    other.locator("#max_new_tokens input[type=number]").press("Tab")
    other.locator("#seed textarea, #seed input").fill("7")
    other.locator("#generate").click()
    other.wait_for_function("window.playground.stage.state().steps >= 2", timeout=60_000)
    page = opened(visit())
    run(page, **SMALL)
    over(page)
    assert page.locator(".lab-disturbed").inner_text().startswith("Somebody else's texts ran")
    other.locator("#stop").click()


def test_the_language_can_change_while_it_runs(visit):
    page = opened(visit(locale="tr-TR"), "Hız")
    assert page.locator("#batching-run").inner_text() == "Çalıştır"
    run(page, requests=8, shortest=20, longest=30)
    page.locator(".block").first.wait_for()
    page.locator("#language").get_by_text("English").click()
    page.wait_for_function("document.querySelector('#batching-stop').innerText === 'Stop'")
    assert len(over(page)["rounds"]) == 2
    assert page.locator(".round h4").all_inner_texts() == ["Static batches", "Continuous batching"]
    assert page.locator(".round .block").count() == 16


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_needs_no_sideways_scrolling(visit, width):
    page = opened(visit(viewport={"width": width, "height": 780}))
    page.locator("#batching-run").click()
    over(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tops = [
        page.locator(one).first.bounding_box()["y"]
        for one in ("#batching-run", ".lanes", ".lab-state", ".lab-measured", "#batching-slots")
    ]
    assert tops == sorted(tops)
    for part in (".lab-table", ".lanes"):
        box = page.locator(part).first.bounding_box()
        assert box["x"] + box["width"] <= width


def asked(app, values: list) -> str:
    """What a program gets that presses the button with values of its own."""
    with urllib.request.urlopen(app.url + "config", timeout=10) as answer:
        config = json.load(answer)
    ids = {part["props"].get("elem_id"): part["id"] for part in config["components"]}
    event = next(
        event
        for event in config["dependencies"]
        if [ids["batching-run"], "click"] in [list(target) for target in event["targets"]]
        and event["outputs"]
    )
    session = secrets.token_hex(6)
    body = {"data": values, "fn_index": event["id"], "session_hash": session}
    join = urllib.request.Request(
        app.url + "gradio_api/queue/join",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(join, timeout=10).close()
    data = f"{app.url}gradio_api/queue/data?session_hash={session}"
    with urllib.request.urlopen(data, timeout=30) as lines:
        for line in lines:
            if b'"process_generating"' in line or b'"process_completed"' in line:
                return line.decode()
    return ""


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, 33, "Texts can't be “33”. Allowed: a whole number from 2 to 32."),
        (1, "x", "Shortest can't be “x”. Allowed: a whole number from 1 to 64."),
        (2, 65, "Longest can't be “65”. Allowed: a whole number from 4 to 64."),
        (3, 1e6, "Arrivals, seconds can't be “1000000.0”. Allowed: a number from 0 to 30."),
        (4, 0, "Slots can't be “0”. Allowed: a whole number from 1 to 8."),
        (5, "-", "Seed can't be “-”. Allowed: a whole number from 0 to"),
    ],
)
def test_a_hostile_program_gets_a_sentence(app, place, value, said):
    values = [12, 4, 48, 0, 4, "7"]
    values[place] = value
    told = json.loads(asked(app, ["en", *values]).removeprefix("data:"))
    assert said in json.loads(told["output"]["data"][0])["error"]["text"]


def test_the_heading_says_what_the_engine_does_now(visit):
    page = visit()
    line = page.locator(".live-status")
    page.wait_for_function("document.querySelector('.live-status')?.innerText.length > 0")
    assert "KV caches" in line.get_attribute("title")
    opened(page)
    run(page, requests=32, shortest=32, longest=64)
    page.wait_for_function(
        "/^\\d+ being written$/.test(document.querySelector('.live-status .running').innerText)",
        timeout=20_000,
    )
    assert re.fullmatch(r"cache [\d.,]+ MiB of [\d.,]+ MiB", line.locator(".cache").inner_text())
    assert re.fullmatch(r"[\d.,]+ tokens/s", line.locator(".speed").inner_text())
    page.locator("#batching-stop").click()
    page.wait_for_function(
        "document.querySelector('.live-status').innerText === 'Nobody is writing now'",
        timeout=20_000,
    )


def test_a_hidden_page_asks_nothing(visit):
    page = visit()
    page.wait_for_timeout(500)
    page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", { get: () => true, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    start = time.monotonic()
    page.locator("#title").click()
    while time.monotonic() < start + 3:
        page.wait_for_timeout(100)
    assert [url for url in asked if url.endswith("status.json")] == []
