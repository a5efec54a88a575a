"""The page in a real browser, on the real default model: a student's first minutes."""

from __future__ import annotations

import re

import pytest
import test_compare as compare_tab
from browsing import DESK, arrive, drawn, until
from playwright.sync_api import expect
from running_app import RunningApp

pytestmark = [pytest.mark.browser, pytest.mark.default_model]

STATE = "window.playground.stage.state()"
SETTLED = f"!{STATE}.running && {STATE}.steps > 0"
SEED = "#seed input, #seed textarea"


def state(page) -> dict:
    return page.evaluate(STATE)


def press(page, prompt: str | None = None, seed: str = "7", **knobs) -> None:
    """Press Generate. With a seed, so that no text ends before the test has seen what it wants."""
    if prompt is not None:
        page.locator("#prompt textarea").fill(prompt)
    page.locator(SEED).fill(seed)
    for name, value in knobs.items():
        turn(page, name, value)
    page.locator("#generate").click()


def generate(page, prompt: str | None = None, seed: str = "7", **knobs) -> None:
    """Press Generate and wait for the first of the new run."""
    old = state(page)["handle"]
    press(page, prompt, seed, **knobs)
    begun(page, old)


def begun(page, old: str | None) -> None:
    """A run other than the old one is on the stage."""
    page.wait_for_function(f"(old) => {STATE}.handle !== old", arg=old, timeout=60_000)


def turn(page, name: str, value: float) -> None:
    """Type a value into a knob's number field."""
    field = page.locator(f"#{name} input[type=number], #knob-{name} input[type=number]")
    field.fill(str(value))
    field.press("Tab")


def finished(page, steps: int | None = None) -> dict:
    """The state of the stage once the run is over, with so many steps, and drawn."""
    page.wait_for_function(SETTLED, timeout=120_000)
    if steps is not None:
        page.wait_for_function(f"{STATE}.steps === {steps}", timeout=20_000)
    drawn(page)
    return state(page)


def rested(page) -> int:
    """How many steps there are once none has come for a while."""
    steps = -1
    while steps != (now := state(page)["steps"]):
        steps = now
        page.wait_for_timeout(1000)  # nothing is to come
    return steps


def table(page) -> list[list[str]]:
    """The distribution as its text alternative says it."""
    rows = page.locator(".stage .hero table tbody tr").all()
    return [row.locator("td, th").all_inner_texts() for row in rows]


def chips(page):
    return page.locator('.stage [role="option"]')


def look_at(page, index: int) -> None:
    """Click a token and wait for its distribution."""
    chips(page).nth(index).click()
    until(page, f"{STATE}.shown === {index}")
    drawn(page)


def test_a_first_visit_shows_the_whole_idea_in_one_click(page):
    expect(page.locator("h1")).to_have_text("Why this token?", use_inner_text=True)
    expect(page.locator(".stage").get_by_text("Press Generate and watch.")).to_be_visible()
    generate(page, max_new_tokens=24)
    growing = page.wait_for_function(
        f"{STATE}.steps >= 3 && document.querySelectorAll('.stage [role=option]').length",
        timeout=60_000,
    ).json_value()
    done = finished(page)
    assert growing < done["steps"]
    expect(chips(page)).to_have_count(done["steps"])
    shown = page.locator(".stage section.text").inner_text()
    assert all(word in shown for word in done["text"].split())
    expect(page.locator(".stage .js-plotly-plot").first).to_be_visible()


def test_the_same_seed_gives_the_same_text_again_typed_or_picked(page):
    generate(page, "Once upon a time", max_new_tokens=6)
    first = finished(page, 6)["text"]
    generate(page)
    assert finished(page, 6)["text"] == first
    generate(page, seed="")
    picked = finished(page)["text"]
    page.get_by_role("button", name="use again").click()
    expect(page.locator(SEED)).not_to_have_value("")
    old = state(page)["handle"]
    page.locator("#generate").click()
    begun(page, old)
    assert finished(page)["text"] == picked


def test_greedy_writes_the_same_text_every_time_and_says_that_nothing_is_drawn(page):
    page.get_by_text("Greedy", exact=False).first.click()
    generate(page, "The capital of France is", max_new_tokens=6)
    first = finished(page, 6)["text"]
    generate(page)
    assert finished(page, 6)["text"] == first
    assert first.startswith(" Paris")
    expect(page.locator(".stage .draw").get_by_text("Nothing is drawn")).to_be_visible()
    expect(page.locator("#effect-top_k")).to_contain_text("No effect")


def test_a_knob_changes_the_shown_distribution_at_once_and_not_the_text(page):
    generate(page, "The Moon goes around the", max_new_tokens=6)
    before = finished(page, 6)
    handle, text = before["handle"], before["text"]
    page.get_by_text("Show as a table").click()
    page.locator(".stage .hero table tbody tr").first.wait_for()
    rows = table(page)
    turn(page, "top_k", 2)
    until(page, f"{STATE}.what_if")
    drawn(page)
    after = state(page)
    assert (after["handle"], after["text"]) == (handle, text)
    assert table(page) != rows
    expect(page.locator(".stage .badge", has_text="What if").first).to_be_visible()
    expect(page.get_by_text("2 of 49,152 tokens kept")).to_be_visible()
    expect(page.locator("#effect-top_k")).to_contain_text("49,150")
    page.get_by_role("button", name="Back to the run").click()
    until(page, f"!{STATE}.what_if")
    drawn(page)
    assert table(page) == rows
    expect(page.locator("#knob-top_k input[type=number]")).to_have_value("0")


def test_write_on_from_here_keeps_the_beginning(page):
    generate(page, "The Moon goes around the", max_new_tokens=6)
    finished(page, 6)
    page.keyboard.press("Escape")
    chips(page).nth(3).click()
    assert state(page)["selected"] == 3
    kept = chips(page).all_inner_texts()[:3]
    turn(page, "temperature", 0)
    until(page, f"{STATE}.what_if")
    old = state(page)["handle"]
    page.get_by_role("button", name="Write on from here").click()
    begun(page, old)
    done = finished(page, 3 + 6)
    expect(chips(page)).to_have_count(3 + 6)
    assert chips(page).all_inner_texts()[:3] == kept
    assert done["earlier"] == [old]


def test_forcing_a_token_branches_the_text_and_the_earlier_one_can_be_brought_back(page):
    generate(page, "The capital of France is", max_new_tokens=5)
    before = finished(page, 5)
    first = chips(page).nth(0).inner_text()
    look_at(page, 1)
    page.get_by_text("Show as a table").click()
    page.locator(".stage .hero table tbody tr button:enabled").last.click()
    begun(page, before["handle"])
    after = finished(page)
    assert after["text"] != before["text"]
    expect(chips(page).nth(0)).to_have_text(first, use_inner_text=True)
    page.locator(".stage details.earlier summary").click()
    page.locator(".stage details.earlier button").first.click()
    until(page, f"{STATE}.handle === {before['handle']!r}")
    assert state(page)["text"] == before["text"]
    # A click on a bar is another way to force a token.
    drawn(page)
    look_at(page, 0)
    page.locator("button.bar-row[data-token]").nth(3).click()
    begun(page, before["handle"])
    assert finished(page)["text"] != before["text"]


def test_stop_ends_midway_and_continue_goes_on(page, app):
    page.locator("#pace label").nth(2).click()  # ten a second: it can't be over before
    generate(page, "Once upon a time", max_new_tokens=200)
    until(page, f"{STATE}.steps >= 4")
    expect(page.locator("#generate")).to_be_hidden()
    page.locator("#stop").click()
    finished(page)
    assert app.idle(within_s=20)
    expect(page.locator("#generate")).to_be_visible()
    steps = rested(page)
    stopped = state(page)
    assert 4 <= stopped["steps"] == steps < 200
    page.locator("#step").click()
    until(page, f"{STATE}.steps === {steps + 1}")
    assert finished(page)["text"].startswith(stopped["text"])


def test_pause_holds_lets_single_tokens_through_and_goes_on(page):
    generate(page, "Once upon a time", max_new_tokens=100)
    until(page, f"{STATE}.steps >= 3")
    with page.expect_response(re.compile("component_server")):  # from then on the server holds it
        page.locator("#pause").click()
    held = rested(page)
    assert held < 90
    expect(page.locator(".stage .status")).to_have_text(re.compile(r"^Paused\."))
    expect(page.locator("#pause")).to_be_disabled()
    for more in (1, 2):
        page.locator("#step").click()
        until(page, f"{STATE}.steps === {held + more}")
        assert rested(page) == held + more
    page.locator("#go-on").click()
    until(page, f"{STATE}.steps > {held + 4}")
    page.evaluate("window.playground.stop()")
    finished(page)


def test_stop_pressed_before_the_first_token_is_not_lost(page, app):
    page.locator("#prompt textarea").fill("Once upon a time")
    turn(page, "max_new_tokens", 300)
    page.evaluate(
        """() => {
            const starting = window.playground.starting;
            window.playground.starting = () => {
                starting();
                window.playground.stop();
            };
        }"""
    )
    page.locator("#generate").click()
    begun(page, None)
    until(page, f"!{STATE}.running")
    assert app.idle(within_s=20)
    expect(page.locator("#generate")).to_be_visible()
    expect(page.locator(".stage .status")).to_have_text("Stopped by you.")
    assert state(page)["steps"] < 300


def test_tokens_forced_in_a_row_all_count(page):
    generate(page, "The capital of France is", max_new_tokens=300)
    until(page, f"{STATE}.steps >= 2")
    look_at(page, 0)
    for row in (2, 3):
        handle = state(page)["handle"]
        page.locator("button.bar-row[data-token]").nth(row).click()
        begun(page, handle)
        drawn(page)
        look_at(page, 0)
    page.evaluate("window.playground.stop()")  # if it still runs
    finished(page)
    expect(page.locator("#generate")).to_be_visible()


def test_a_finished_text_grows_token_by_token_without_a_list_of_its_beginnings(page):
    generate(page, "The capital of France is", max_new_tokens=2)
    finished(page, 2)
    for more in (3, 4, 5):
        page.locator("#step").click()
        until(page, f"{STATE}.steps === {more}")
        expect(page.locator("#step")).to_be_enabled()
    assert finished(page, 5)["earlier"] == []
    expect(page.locator(".stage .status")).to_have_text("One token written.")


def test_the_page_loads_nothing_from_other_servers(page, app):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    until(page, "window.playground")
    page.wait_for_timeout(1000)  # nothing is to be asked for
    assert [url for url in asked if not url.startswith((app.url, "data:", "blob:"))] == []
    assert len(asked) > 10


def test_drawing_a_step_a_hundred_times_tallies_a_hundred(page):
    generate(page, "My favourite colour is", max_new_tokens=3)
    finished(page, 3)
    page.get_by_role("button", name="Draw this step 100 times").click()
    until(page, f"{STATE}.drawn === 100")


def test_the_language_switch_relabels_everything_and_keeps_the_text(page):
    generate(page, max_new_tokens=3)
    text = finished(page, 3)["text"]
    page.locator("#language").get_by_text("Türkçe").click()
    expect(page.locator("#generate")).to_contain_text("Üret")
    expect(page.locator("h1")).to_have_text("Neden bu token?", use_inner_text=True)
    expect(page.locator("html")).to_have_attribute("lang", "tr")
    assert state(page)["text"] == text
    expect(page.locator("#knob-temperature").get_by_text("Sıcaklık").first).to_be_visible()
    page.reload()
    until(page, "window.playground")
    expect(page.locator("#generate")).to_contain_text("Üret")


def test_a_turkish_browser_gets_a_turkish_page(visit):
    page = visit(locale="tr-TR")
    expect(page.locator("#generate")).to_have_text("Üret")
    expect(page.locator("h1")).to_have_text("Neden bu token?", use_inner_text=True)
    expect(page.get_by_text("Üret düğmesine basın", exact=False).first).to_be_attached()


def test_a_phone_needs_no_sideways_scrolling(visit):
    sizes = [{"width": width, "height": 780} for width in (320, 390)]
    page = visit(viewport=sizes[0])
    page.locator("#generate").click()
    until(page, f"{STATE}.steps >= 3")
    page.evaluate("window.playground.stop()")
    finished(page)
    for size in sizes:
        page.set_viewport_size(size)
        drawn(page)
        fits(page, size["width"])
        # Prompt and Generate first, then the text, then the distribution.
        tops = [
            page.locator(one).first.bounding_box()["y"]
            for one in ("#prompt", "#generate", ".stage section.text", ".stage .hero")
        ]
        assert tops == sorted(tops)
    # The settings are a sheet at the foot of the screen, so that knobs and bars are seen together.
    page.locator("#fold > button").click()
    expect(page.locator("#knob-temperature")).to_be_visible()
    for size in sizes:
        page.set_viewport_size(size)
        page.locator(".stage .hero").scroll_into_view_if_needed()
        drawn(page)
        sheet = page.locator("#knobs").bounding_box()
        assert 0 < sheet["y"] < sheet["y"] + sheet["height"] <= 780 + 1
        assert sheet["height"] < 780 / 2
        expect(page.locator("#knob-temperature")).to_be_visible()


def fits(page, width: int) -> None:
    """Nothing is wider than the screen; pictures follow a new width a little later."""
    page.wait_for_function(
        "(width) => innerWidth === width && document.documentElement.scrollWidth <= width",
        arg=width,
        timeout=20_000,
    )


def test_what_people_type_is_shown_as_text_and_never_run(page):
    for prompt in (
        "<img src=x onerror=window.hit=1><script>window.hit=1</script>",
        "$x^2$ and **bold** and `code` and [link](javascript:window.hit=1)",
        "\u202eright to left\u202c שלום مرحبا",
        "null\u0000byte",
        "   ",
        "",
    ):
        generate(page, prompt, max_new_tokens=2)
        finished(page)
        assert page.evaluate("window.hit") is None, prompt
        text = page.locator(".stage section.text")
        expect(text.locator(":is(img, script, strong, a)")).to_have_count(0)
        if "<" in prompt:
            expect(text).to_contain_text("<img")


def test_nothing_is_lost_where_messages_are(page):
    """Gradio keeps only the newest of several values that come at once: here, the end alone."""
    page.evaluate(
        """() => {
            const { stage } = window.playground;
            const receive = stage.receive;
            stage.receive = (message) => {
                if (message.finished && window.lost === undefined) {
                    window.lost = message.from + message.steps.length;
                    receive({ ...message, steps: [], from: window.lost });
                } else if (message.started || window.lost !== undefined) receive(message);
            };
        }"""
    )
    press(page, "Once upon a time", max_new_tokens=20)
    until(page, f"window.lost === 20 && {STATE}.steps === 20")
    expect(chips(page)).to_have_count(20)


def test_half_a_surrogate_pair_gets_an_answer(page):
    page.evaluate(
        """() => {
            const box = document.querySelector("#prompt textarea");
            box.value = "ab\ud800cd";
            box.dispatchEvent(new Event("input", { bubbles: true }));
        }"""
    )
    page.locator("#generate").click()
    page.locator(".stage .alert", has_text="Prompt").wait_for()
    generate(page, "Hello", max_new_tokens=2)
    finished(page)


def test_a_bad_value_is_said_in_the_readers_language_and_nothing_is_lost(page):
    generate(page, max_new_tokens=2)
    text = finished(page, 2)["text"]
    press(page, seed="seven")
    alert = page.locator(".stage .alert", has_text="Seed")
    expect(alert).to_contain_text("seven")
    expect(alert).to_contain_text("0 to 9,007,199,254,740,991")
    assert state(page)["text"] == text
    page.locator(SEED).fill("")
    generate(page)
    finished(page)


def test_the_keyboard_alone_generates_stops_and_forces(page):
    page.locator(SEED).fill("7")
    page.locator("#generate").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_focused()
    until(page, f"{STATE}.steps >= 2")
    page.keyboard.press("Enter")
    finished(page)
    expect(page.locator("#generate")).to_be_focused()
    chips(page).nth(0).focus()
    page.keyboard.press("Home")
    until(page, f"{STATE}.selected === 0 && {STATE}.shown === 0")
    drawn(page)
    handle = state(page)["handle"]
    page.locator("button.bar-row[data-token]").nth(2).focus()
    page.keyboard.press("Enter")
    begun(page, handle)
    until(page, "document.activeElement.matches('button.bar-row')")
    page.evaluate("window.playground.stop()")
    finished(page)


def test_a_server_that_dies_is_noticed_on_every_tab_and_the_buttons_come_back(browser, tmp_path):
    app = RunningApp(tmp_path / "log.txt")
    contexts = [browser.new_context(**DESK | {"locale": lang}) for lang in ("tr-TR", "en-US")]
    page, other = (context.new_page() for context in contexts)
    try:
        for one in (page, other):
            arrive(one, app.url)
        expect(page.locator("#generate")).to_have_text("Üret")
        page.locator("#pace label").first.click()
        page.locator("#generate").click()
        compare_tab.opened(other)
        compare_tab.compare(other, length=500)
        until(page, f"{STATE}.steps >= 2")
        until(other, compare_tab.WRITTEN.format(2))
        app.process.kill()
        alert = page.locator(".stage .alert", has_text="Sunucu yanıt vermiyor")
        alert.wait_for(timeout=30_000)
        for place in (0, 2):
            alert = compare_tab.columns(other).nth(place).get_by_role("alert")
            alert.filter(has_text="The server does not answer").wait_for(timeout=30_000)
        expect(page.locator("#generate")).to_be_visible()
        assert state(page)["steps"] >= 2
        expect(other.locator(".compare .go")).to_have_text("Compare")
        assert all(column["steps"] >= 2 for column in compare_tab.state(other)["columns"])
    finally:
        for context in contexts:
            context.close()
        app.stop()


def test_a_closed_page_stops_decoding(visit, app):
    page = visit()
    generate(page, "Once upon a time", max_new_tokens=500)
    until(page, f"{STATE}.steps >= 2")
    page.close()
    assert app.idle(within_s=10)
