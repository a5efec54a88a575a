"""The part Batching in a real browser, on the real default model."""

from __future__ import annotations

import json
import re
import secrets
import urllib.request

import pytest
from browsing import drawn
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.default_model]

STATE = "window.playgroundBatching.state()"
SMALL = {"requests": 5, "shortest": 2, "longest": 8, "slots": 2}
LONG = {"requests": 32, "shortest": 64, "longest": 64, "slots": 2}
# What is seen frame by frame, kept for later: a short lab may be over before one looks.
SWITCHED = """() => {
    const seen = (id) => document.getElementById(id).checkVisibility();
    window.switched = [];
    const look = () => {
        window.switched.push([seen("batching-run"), seen("batching-stop")]);
        requestAnimationFrame(look);
    };
    look();
}"""
GROWTH = """() => {
    window.growth = [];
    const look = () => {
        const { covered, lab } = window.playgroundBatching.state();
        window.growth.push([covered, document.querySelectorAll(".block").length]);
        if (!lab.ended) requestAnimationFrame(look);
    };
    look();
}"""


def opened(page, name: str = "Speed"):
    page.get_by_role("tab", name=name).click()
    page.wait_for_function("window.playgroundBatching", timeout=30_000)
    page.locator(".lab .lanes").first.wait_for()
    return page


def fill(page, **values: float) -> None:
    for name, value in values.items():
        field = page.locator(f"#batching-{name} input[type=number]")
        field.fill(str(value))
        field.press("Tab")


def run(page, **values: float) -> None:
    """Press Run and wait until the page has taken it: an earlier lab is gone then."""
    fill(page, **values)
    old = page.evaluate(f"{STATE}.lab.handle")
    page.locator("#batching-run").click()
    page.wait_for_function(
        f"(old) => {STATE}.running || {STATE}.lab.handle !== old", arg=old, timeout=60_000
    )


def over(page) -> dict:
    """The lab once it has ended, and drawn."""
    page.wait_for_function(f"{STATE}.lab.ended && !{STATE}.running", timeout=120_000)
    drawn(page)
    return page.evaluate(STATE)["lab"]


def fits(page, width: int) -> None:
    """Nothing is wider than the screen; pictures follow a new width a little later."""
    parts = ["html", ".lab-table", ".lanes"]
    page.wait_for_function(
        """([width, parts]) => innerWidth === width
            && document.documentElement.scrollWidth <= width
            && parts.map((one) => document.querySelector(one).getBoundingClientRect().right)
                .every((right) => right <= width)
        """,
        arg=[width, parts],
        timeout=20_000,
    )


def row(page, name: str) -> list[float]:
    """What the table says of one measure: static, continuous, ratio."""
    texts = page.locator(f".lab-measured tr[data-row={name}] td").all_inner_texts()
    return [float(re.sub(r"[^\d.]", "", text)) for text in texts]


def test_a_small_lab_is_drawn_and_said_as_it_was_measured(page):
    opened(page)
    expect(page.locator("h1")).to_have_text("Why is it slow, and what helps?", use_inner_text=True)
    expect(page.get_by_text("Press Run both and watch.")).to_be_visible()
    page.evaluate(SWITCHED)
    run(page, **SMALL)
    lab = over(page)
    # Stop stood in the place of Run while it ran.
    assert [False, True] in page.evaluate("window.switched")
    expect(page.locator("#batching-run")).to_be_visible()
    expect(page.locator("#batching-stop")).to_be_hidden()
    for round_ in lab["rounds"]:
        picture = page.locator(f'.round[data-way="{round_["way"]}"]')
        expect(picture.locator(".block")).to_have_count(SMALL["requests"])
        expect(picture.locator(".idle")).to_have_count(SMALL["slots"])
        for passage in round_["passages"]:
            block = picture.locator(f'.block[data-number="{passage["number"]}"]')
            ticks = block.locator(".ticks").get_attribute("d").count("M")
            assert ticks == len(passage["steps"]) == passage["tokens"]
    static, continuous = (round_["measures"] for round_ in lab["rounds"])
    the_table_is_true(page, static, continuous)
    the_sentence_is_true(page, static, continuous)
    the_pointer_tells_of_a_text(page, lab["texts"][1])


def the_table_is_true(page, static: dict, continuous: dict) -> None:
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


def the_sentence_is_true(page, static: dict, continuous: dict) -> None:
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


def the_pointer_tells_of_a_text(page, text: dict) -> None:
    page.locator('.round[data-way="continuous"] .block[data-number="2"] .body').hover()
    card = page.locator(".lab .tip")
    expect(card).to_contain_text("Text 2")
    expect(card).to_be_visible()
    assert text["prompt"] in card.inner_text()
    assert f"{text['tokens']} of {text['tokens']}" in card.inner_text()


def test_pictures_grow_on_one_axis_that_never_shrinks(page):
    opened(page)
    page.evaluate(GROWTH)
    run(page, requests=6, shortest=8, longest=16, slots=2)
    over(page)
    seen = page.evaluate("window.growth")
    assert seen == sorted(seen)
    assert len({blocks for _, blocks in seen}) > 3
    ends = page.evaluate("[...document.querySelectorAll('.lanes')].map((svg) => svg.clientWidth)")
    assert ends[0] == ends[1]


def test_stop_ends_it_at_once_and_run_comes_back(visit, app):
    page = opened(visit())
    run(page, **LONG)
    page.locator(".block").nth(1).wait_for()
    page.locator("#batching-stop").click()
    assert over(page)["ended"] == "stopped"
    expect(page.locator(".lab-state")).to_have_text(re.compile(r"^Stopped by you\."))
    expect(page.locator("#batching-run")).to_be_visible()
    assert app.idle(within_s=5)
    # A closed page stops its lab too.
    run(page)
    page.wait_for_function(f"{STATE}.running && document.querySelector('.block')", timeout=60_000)
    page.close()
    assert app.idle(within_s=10)


def test_stop_pressed_before_the_first_news_is_not_lost(page, app):
    opened(page)
    fill(page, **LONG)
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


def test_others_who_write_meanwhile_are_told_of(page, visit):
    other = visit()
    opened(page)
    other.locator("#max_new_tokens input[type=number]").fill("400")
    other.locator("#max_new_tokens input[type=number]").press("Tab")
    other.locator("#seed textarea, #seed input").fill("7")
    other.locator("#generate").click()
    other.wait_for_function("window.playground.stage.state().steps >= 2", timeout=60_000)
    run(page, **SMALL | {"requests": 3})
    over(page)
    told = page.locator(".lab-disturbed")
    expect(told).to_contain_text(re.compile("^Somebody else's texts ran"))
    other.evaluate("window.playground.stop()")


def test_the_language_can_change_while_it_runs(visit):
    page = opened(visit(locale="tr-TR"), "Hız")
    expect(page.locator("#batching-run")).to_have_text("Çalıştır")
    run(page, requests=6, shortest=12, longest=20)
    page.locator(".block").first.wait_for()
    page.locator("#language").get_by_text("English").click()
    expect(page.locator("#batching-stop")).to_have_text("Stop")
    assert len(over(page)["rounds"]) == 2
    names = ["Static batches", "Continuous batching"]
    expect(page.locator(".round h4")).to_have_text(names)
    expect(page.locator(".round .block")).to_have_count(12)


def test_a_phone_needs_no_sideways_scrolling(visit):
    sizes = [{"width": width, "height": 780} for width in (320, 390)]
    page = opened(visit(viewport=sizes[0]))
    run(page, shortest=2, longest=6)
    over(page)
    for size in sizes:
        page.set_viewport_size(size)
        fits(page, size["width"])
        tops = [
            page.locator(one).first.bounding_box()["y"]
            for one in ("#batching-run", ".lanes", ".lab-state", ".lab-measured", "#batching-slots")
        ]
        assert tops == sorted(tops)


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


def test_the_heading_says_what_the_engine_does_now_and_a_hidden_page_asks_nothing(page):
    line = page.locator(".live-status")
    expect(line).to_contain_text(re.compile("."))
    expect(line).to_have_attribute("title", re.compile("KV caches"))
    opened(page)
    run(page, requests=32, shortest=32, longest=64)
    expect(line.locator(".running")).to_have_text(re.compile(r"^\d+ being written$"))
    expect(line.locator(".cache")).to_have_text(re.compile(r"^cache [\d.,]+ MiB of [\d.,]+ MiB$"))
    expect(line.locator(".speed")).to_have_text(re.compile(r"^[\d.,]+ tokens/s$"))
    page.locator("#batching-stop").click()
    expect(line).to_have_text("Nobody is writing now", use_inner_text=True)
    page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", { get: () => true, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#title").click()  # a page that is seen would ask soon after
    page.wait_for_timeout(2500)  # nothing is to be asked
    assert [url for url in asked if url.endswith("status.json")] == []
