"""The page in a real browser, on the real default model: a student's first minutes."""

from __future__ import annotations

import pytest
from running_app import RunningApp

pytestmark = [pytest.mark.browser, pytest.mark.default_model]

STATE = "window.playground.stage.state()"
SETTLED = f"!{STATE}.running && {STATE}.steps > 0"


def state(page) -> dict:
    return page.evaluate(STATE)


SEED = "#seed input, #seed textarea"


def generate(page, prompt: str | None = None, seed: str = "7", **knobs) -> None:
    """Press Generate. With a seed, so that no text ends before the test has seen what it wants."""
    if prompt is not None:
        page.locator("#prompt textarea").fill(prompt)
    if page.locator(SEED).is_visible():  # on a phone it is folded away
        page.locator(SEED).fill(seed)
    for name, value in knobs.items():
        turn(page, name, value)
    page.locator("#generate").click()


def turn(page, name: str, value: float) -> None:
    """Type a value into a knob's number field."""
    field = page.locator(f"#{name} input[type=number], #knob-{name} input[type=number]")
    field.fill(str(value))
    field.press("Tab")


def finished(page) -> dict:
    page.wait_for_function(SETTLED, timeout=120_000)
    page.wait_for_timeout(300)  # one frame and the transitions behind it
    return state(page)


def table(page) -> list[list[str]]:
    """The distribution as its text alternative says it."""
    rows = page.locator(".stage .hero table tbody tr").all()
    return [row.locator("td, th").all_inner_texts() for row in rows]


def chips(page):
    return page.locator('.stage [role="option"]')


def test_a_first_visit_shows_the_whole_idea_in_one_click(page):
    assert page.locator("h1").inner_text() == "Why this token?"
    assert page.locator(".stage").get_by_text("Press Generate and watch.").is_visible()
    generate(page, max_new_tokens=24)
    page.wait_for_function(f"{STATE}.steps >= 3", timeout=60_000)
    growing = chips(page).count()
    done = finished(page)
    assert growing < chips(page).count() == done["steps"]
    shown = page.locator(".stage section.text").inner_text()
    assert all(word in shown for word in done["text"].split())
    assert page.locator(".stage .js-plotly-plot").first.is_visible()


def test_greedy_writes_the_same_text_every_time_and_says_that_nothing_is_drawn(page):
    page.get_by_text("Greedy", exact=False).first.click()
    generate(page, "The capital of France is", max_new_tokens=6)
    first = finished(page)["text"]
    generate(page)
    page.wait_for_timeout(500)
    assert finished(page)["text"] == first
    assert first.startswith(" Paris")
    assert page.locator(".stage .draw").get_by_text("Nothing is drawn").is_visible()
    assert "No effect" in page.locator("#effect-top_k").inner_text()


def test_a_seed_gives_the_same_text_again(page):
    generate(page, "Once upon a time", max_new_tokens=8)
    first = finished(page)["text"]
    generate(page)
    page.wait_for_timeout(500)
    assert finished(page)["text"] == first


def test_a_knob_changes_the_shown_distribution_at_once_and_not_the_text(page):
    generate(page, "The Moon goes around the", max_new_tokens=6)
    before = finished(page)
    handle, text = before["handle"], before["text"]
    page.get_by_text("Show as a table").click()
    page.locator(".stage .hero table tbody tr").first.wait_for()
    rows = table(page)
    turn(page, "top_k", 2)
    page.wait_for_function(f"{STATE}.what_if")
    page.wait_for_timeout(300)
    after = state(page)
    assert (after["handle"], after["text"]) == (handle, text)
    assert table(page) != rows
    assert page.locator(".stage .badge", has_text="What if").first.is_visible()
    assert page.get_by_text("2 of 49,152 tokens kept").is_visible()
    assert "49,150" in page.locator("#effect-top_k").inner_text()
    page.get_by_role("button", name="Back to the run").click()
    page.wait_for_function(f"!{STATE}.what_if")
    page.wait_for_timeout(300)
    assert table(page) == rows
    assert page.locator("#knob-top_k input[type=number]").input_value() == "0"


def test_write_on_from_here_keeps_the_beginning(page):
    generate(page, "The Moon goes around the", max_new_tokens=8)
    finished(page)
    page.keyboard.press("Escape")
    chips(page).nth(3).click()
    assert state(page)["selected"] == 3
    kept = chips(page).all_inner_texts()[:3]
    turn(page, "temperature", 0)
    page.wait_for_function(f"{STATE}.what_if")
    old = state(page)["handle"]
    page.get_by_role("button", name="Write on from here").click()
    page.wait_for_function(f"{STATE}.handle !== {old!r}", timeout=60_000)
    done = finished(page)
    assert done["steps"] == 3 + 8
    assert chips(page).all_inner_texts()[:3] == kept
    assert done["earlier"] == [old]


def test_forcing_a_token_branches_the_text_and_the_earlier_one_can_be_brought_back(page):
    generate(page, "The capital of France is", max_new_tokens=5)
    before = finished(page)
    first = chips(page).nth(0).inner_text()
    chips(page).nth(1).click()
    page.get_by_text("Show as a table").click()
    page.locator(".stage .hero table tbody tr button:enabled").last.click()
    page.wait_for_function(f"{STATE}.handle !== {before['handle']!r}", timeout=60_000)
    after = finished(page)
    assert after["text"] != before["text"]
    assert chips(page).nth(0).inner_text() == first
    page.locator(".stage details.earlier summary").click()
    page.locator(".stage details.earlier button").first.click()
    page.wait_for_timeout(300)
    assert state(page)["text"] == before["text"]


def test_a_click_on_a_bar_forces_that_token(page):
    generate(page, "The capital of France is", max_new_tokens=4)
    before = finished(page)
    chips(page).nth(0).click()
    page.wait_for_timeout(300)
    page.locator("button.bar-row[data-token]").nth(3).click()
    page.wait_for_function(f"{STATE}.handle !== {before['handle']!r}", timeout=60_000)
    assert finished(page)["text"] != before["text"]


def test_stop_ends_midway_and_continue_goes_on(page):
    generate(page, "Once upon a time", max_new_tokens=200)
    page.wait_for_function(f"{STATE}.steps >= 4", timeout=60_000)
    assert not page.locator("#generate").is_visible()
    page.locator("#stop").click()
    stopped = finished(page)
    assert 4 <= stopped["steps"] < 200
    assert page.locator("#generate").is_visible()
    page.wait_for_timeout(700)
    assert state(page)["steps"] == stopped["steps"]
    page.locator("#step").click()
    page.wait_for_function(f"{STATE}.steps === {stopped['steps'] + 1}", timeout=60_000)
    assert finished(page)["text"].startswith(stopped["text"])


def test_pause_holds_lets_single_tokens_through_and_goes_on(page):
    generate(page, "Once upon a time", max_new_tokens=100)
    page.wait_for_function(f"{STATE}.steps >= 3", timeout=60_000)
    page.locator("#pause").click()
    page.wait_for_timeout(800)
    held = state(page)["steps"]
    page.wait_for_timeout(800)
    assert state(page)["steps"] == held
    assert page.locator(".stage .status").inner_text().startswith("Paused.")
    assert page.locator("#pause").is_disabled()
    for more in (1, 2):
        page.locator("#step").click()
        page.wait_for_function(f"{STATE}.steps === {held + more}", timeout=60_000)
        page.wait_for_timeout(600)
        assert state(page)["steps"] == held + more
    page.locator("#go-on").click()
    page.wait_for_function(f"{STATE}.steps > {held + 4}", timeout=60_000)
    page.locator("#stop").click()
    finished(page)


def test_stop_pressed_before_the_first_token_is_not_lost(page, app):
    page.locator("#prompt textarea").fill("Once upon a time")
    turn(page, "max_new_tokens", 300)
    page.locator("#generate").click()
    page.evaluate("window.playground.stop()")
    assert app.idle(within_s=20)
    assert page.locator("#generate").is_visible()
    assert state(page)["steps"] < 20


def test_tokens_forced_in_a_row_all_count(page):
    generate(page, "The capital of France is", max_new_tokens=300)
    page.wait_for_function(f"{STATE}.steps >= 2", timeout=60_000)
    chips(page).nth(0).click()
    for row in (2, 3):
        handle = state(page)["handle"]
        page.locator("button.bar-row[data-token]").nth(row).click()
        page.wait_for_function(f"{STATE}.handle !== {handle!r}", timeout=60_000)
        chips(page).nth(0).click()
    page.locator("#stop").click()
    finished(page)
    assert page.locator("#generate").is_visible()


def test_a_finished_text_grows_token_by_token_without_a_list_of_its_beginnings(page):
    generate(page, "The capital of France is", max_new_tokens=2)
    finished(page)
    for more in (3, 4, 5):
        page.locator("#step").click()
        page.wait_for_function(f"{STATE}.steps === {more}", timeout=60_000)
        page.wait_for_function("!document.querySelector('#step').disabled")
    assert finished(page)["earlier"] == []
    assert page.locator(".stage .status").inner_text() == "One token written."


def test_a_seed_that_was_picked_can_be_used_again(page):
    generate(page, "Once upon a time", seed="", max_new_tokens=6)
    first = finished(page)["text"]
    page.get_by_role("button", name="use again").click()
    page.wait_for_function(f"document.querySelector({SEED!r}).value !== ''")
    page.locator("#generate").click()
    page.wait_for_timeout(500)
    assert finished(page)["text"] == first


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


def test_the_page_loads_nothing_from_other_servers(visit, app):
    asked = []
    page = visit()
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.wait_for_function("window.playground")
    page.wait_for_timeout(1500)
    assert [url for url in asked if not url.startswith((app.url, "data:", "blob:"))] == []
    assert len(asked) > 10


def test_drawing_a_step_a_hundred_times_tallies_a_hundred(page):
    generate(page, "My favourite colour is", max_new_tokens=3)
    finished(page)
    page.get_by_role("button", name="Draw this step 100 times").click()
    page.wait_for_function(f"{STATE}.drawn === 100")


def test_the_language_switch_relabels_everything_and_keeps_the_text(page):
    generate(page, max_new_tokens=3)
    text = finished(page)["text"]
    page.locator("#language").get_by_text("Türkçe").click()
    page.wait_for_function("document.querySelector('#generate').innerText.includes('Üret')")
    assert page.locator("h1").inner_text() == "Neden bu token?"
    assert page.evaluate("document.documentElement.lang") == "tr"
    assert state(page)["text"] == text
    assert page.locator("#knob-temperature").get_by_text("Sıcaklık").first.is_visible()
    page.reload()
    page.wait_for_function("window.playground")
    page.wait_for_function("document.querySelector('#generate').innerText.includes('Üret')")


def test_a_turkish_browser_gets_a_turkish_page(visit):
    page = visit(locale="tr-TR")
    assert page.locator("#generate").inner_text() == "Üret"
    assert page.locator("h1").inner_text() == "Neden bu token?"
    assert page.get_by_text("Üret düğmesine basın", exact=False).count() >= 1


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_needs_no_sideways_scrolling(visit, width):
    page = visit(viewport={"width": width, "height": 780})
    generate(page, max_new_tokens=6) if page.locator("#max_new_tokens").is_visible() else None
    if state(page)["steps"] == 0:
        page.locator("#generate").click()
        page.wait_for_function(f"{STATE}.steps >= 3", timeout=60_000)
        page.locator("#stop").click()
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Prompt and Generate first, then the text, then the distribution.
    tops = [
        page.locator(one).first.bounding_box()["y"]
        for one in ("#prompt", "#generate", ".stage section.text", ".stage .hero")
    ]
    assert tops == sorted(tops)
    # The settings are a sheet at the foot of the screen, so that knobs and bars are seen together.
    page.locator("#fold > button").click()
    page.locator(".stage .hero").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    sheet = page.locator("#knobs").bounding_box()
    assert 0 < sheet["y"] < sheet["y"] + sheet["height"] <= 780 + 1
    assert sheet["height"] < 780 / 2
    assert page.locator("#knob-temperature").is_visible()


@pytest.mark.parametrize(
    "prompt",
    [
        "<img src=x onerror=window.hit=1><script>window.hit=1</script>",
        "$x^2$ and **bold** and `code` and [link](javascript:window.hit=1)",
        "\u202eright to left\u202c שלום مرحبا",
        "null\u0000byte",
        "   ",
        "",
    ],
)
def test_what_people_type_is_shown_as_text_and_never_run(page, prompt):
    generate(page, prompt, max_new_tokens=2)
    finished(page)
    assert page.evaluate("window.hit") is None
    assert page.locator(".stage section.text :is(img, script, strong, a)").count() == 0
    if "<" in prompt:
        assert "<img" in page.locator(".stage section.text").inner_text()


def test_a_bad_value_is_said_in_the_readers_language_and_nothing_is_lost(page):
    generate(page, max_new_tokens=2)
    text = finished(page)["text"]
    page.locator(SEED).fill("seven")
    page.locator("#generate").click()
    alert = page.locator(".stage .alert", has_text="Seed")
    alert.wait_for()
    assert "seven" in alert.inner_text()
    assert "0 to 9,007,199,254,740,991" in alert.inner_text()
    assert state(page)["text"] == text
    page.locator(SEED).fill("")
    generate(page)
    page.wait_for_timeout(500)
    finished(page)


def test_the_keyboard_alone_generates_stops_and_forces(page):
    page.locator("#generate").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'stop'")
    page.wait_for_function(f"{STATE}.steps >= 2", timeout=60_000)
    page.keyboard.press("Enter")
    finished(page)
    assert page.evaluate("document.activeElement.id") == "generate"
    chips(page).nth(0).focus()
    page.keyboard.press("Home")
    assert state(page)["selected"] == 0
    handle = state(page)["handle"]
    page.locator("button.bar-row[data-token]").nth(2).focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"{STATE}.handle !== {handle!r}", timeout=60_000)
    page.wait_for_function("document.activeElement.matches('button.bar-row')")
    page.locator("#stop").click()
    finished(page)


def test_a_server_that_dies_is_noticed_and_generate_comes_back(browser, tmp_path):
    app = RunningApp(tmp_path / "log.txt")
    context = browser.new_context(locale="tr-TR", viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    try:
        page.goto(app.url)
        page.wait_for_function("window.playground")
        page.wait_for_timeout(800)
        page.locator("#pace label").first.click()
        page.locator("#generate").click()
        page.wait_for_function(f"{STATE}.steps >= 2", timeout=60_000)
        app.process.kill()
        page.locator(".stage .alert", has_text="Sunucu yanıt vermiyor").wait_for(timeout=30_000)
        assert page.locator("#generate").is_visible()
        assert state(page)["steps"] >= 2
    finally:
        context.close()
        app.stop()


def test_a_closed_page_stops_decoding(visit, app):
    page = visit()
    generate(page, "Once upon a time", max_new_tokens=500)
    page.wait_for_function(f"{STATE}.steps >= 2", timeout=60_000)
    page.close()
    assert app.idle(within_s=10)
