"""The tab Compare in a real browser, on the real default model."""

from __future__ import annotations

import math
import re

import pytest
from browsing import drawn, until
from playwright.sync_api import expect

from model import TextMeasures

pytestmark = [pytest.mark.browser, pytest.mark.default_model]

STATE = "window.playgroundCompare.comparison.state()"
LIMIT = "Number(document.querySelector('.compare .limit .number').value)"
# Steps whose message was lost are asked for and come after the end.
WHOLE = f"(column) => column.reason !== 'length' || column.steps === {LIMIT}"
SETTLED = (
    f"!{STATE}.running && {STATE}.columns.some((column) => column.steps)"
    f" && {STATE}.columns.every({WHOLE})"
)
WRITTEN = STATE + ".columns.every((column) => column.steps >= {})"
KNOBS = ("strategy", "temperature", "top_k", "top_p", "seed")


def opened(page):
    page.locator('#tabs [data-tab-id="compare"]').last.click()
    page.wait_for_function("window.playgroundCompare", timeout=60_000)
    page.locator(".compare .column").nth(1).wait_for()
    return page


@pytest.fixture
def board(page):
    return opened(page)


def state(page) -> dict:
    return page.evaluate(STATE)


def columns(page):
    return page.locator(".compare .column")


def go(page):
    """The button that is Compare and Stop."""
    return page.locator(".compare .go")


def chips(page, place: int):
    return columns(page).nth(place).locator('.flow [role="option"]')


def compare(page, prompt: str | None = None, length: int | str | None = None) -> None:
    """Press Compare."""
    if prompt is not None:
        page.locator(".compare .ask textarea").fill(prompt)
    if length is not None:
        page.locator(".compare .limit .number").fill(str(length))
    go(page).click()


def finished(page) -> dict:
    """The state of the board once all columns are over, and drawn."""
    page.wait_for_function(SETTLED, timeout=180_000)
    drawn(page)
    return state(page)


def choose(page, name: str) -> None:
    page.locator(f'.compare [data-set="{name}"]').click()
    until(page, f"{STATE}.set === '{name}'")
    drawn(page)


def put(page, place: int, label: str, value: str) -> None:
    """Type a value into a field of a column's settings."""
    settings = columns(page).nth(place).locator(".settings")
    settings.locator("> summary").click()
    settings.get_by_role("textbox", name=label).fill(value)
    page.keyboard.press("Escape")


def first_difference(one: list[int], other: list[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


def test_a_first_visit_shows_the_whole_idea_in_one_click(board):
    page = board
    expect(page.locator("h1")).to_have_text("What does a strategy change?", use_inner_text=True)
    verdict = page.locator(".compare .verdict")
    expect(verdict).to_have_text(re.compile("^Press Compare"))
    expect(columns(page)).to_have_count(3)
    go(page).click()
    button = "document.querySelector('.compare .go')"
    until(page, f"{WRITTEN.format(3)} && {button}.innerText === 'Stop'")
    done = finished(page)
    expect(go(page)).to_have_text("Compare")
    for place, column in enumerate(done["columns"]):
        assert column["steps"] > 0
        expect(chips(page, place)).to_have_count(column["steps"])
        shown = columns(page).nth(place).locator(".flow").inner_text()
        assert all(word in shown for word in column["text"].split() if word.isalpha())
    expect(verdict).to_contain_text("where A · Greedy chose")
    expect(page.locator(".compare .courses .js-plotly-plot")).to_be_visible()
    assert "tokens/s" not in page.locator(".compare").inner_text()


def test_the_measures_are_those_of_the_apis_tokens(board, app):
    choose(board, "all")
    prompt, length = "I think that I think that I think", 10  # something to repeat
    compare(board, prompt, length)
    done = finished(board)
    assert len(done["columns"]) == 6
    client = app.client()
    for place, column in enumerate(done["columns"]):
        settings = {name: column["settings"][name] for name in KNOBS}
        if settings["strategy"] == "greedy":
            settings = {"strategy": "greedy"}
        job = client.submit(prompt, max_new_tokens=length, **settings, api_name="/generate")
        job.result(timeout=120)
        steps = [event for event in job.outputs() if event["event"] == "step"]
        assert column["ids"] == [step["token_id"] for step in steps]
        measures = TextMeasures()
        for step in steps:
            measures.add(step["token_id"], step["raw_prob"], step["final_prob"])
        expected = {
            "logprob": measures.mean_logprob,
            "final_logprob": measures.mean_final_logprob,
            "distinct_1": measures.distinct(1),
            "distinct_2": measures.distinct(2),
            "repetition": measures.repetition,
        }
        for name, value in expected.items():
            assert math.isclose(column["measures"][name], value, abs_tol=2e-3), name
            shown = columns(board).nth(place).locator(f'[data-measure="{name}"] dd').inner_text()
            digits = 2 if "logprob" in name else 3
            told = float(shown.replace("−", "-"))
            assert math.isclose(told, column["measures"][name], abs_tol=0.51 / 10**digits), name


def test_every_text_is_marked_where_it_parts_from_the_first(board):
    choose(board, "all")
    compare(board, length=24)
    done = finished(board)
    first, *others = (column["ids"] for column in done["columns"])
    places = [first_difference(first, ids) for ids in others]
    assert done["parted"] == [None, *places]
    assert any(places)
    letters = "BCDEF"
    for place, index in enumerate(places, start=1):
        signed = columns(board).nth(place).locator(".signed")
        expect(signed).to_have_count(int(index is not None))
        if index is not None:
            expect(signed).to_have_attribute("data-index", str(index))
            expect(signed.locator(".body").first).to_have_attribute("data-sign", "≠A")
            link = columns(board).nth(place).locator(".parting .link")
            expect(link).to_have_text(re.compile(rf"^Token {index + 1}:"))
    reference = {
        int(chip.get_attribute("data-index")): chip.locator(".body").first.get_attribute(
            "data-sign"
        )
        for chip in columns(board).first.locator(".signed").all()
    }
    assert reference == {
        index: "≠" + "".join(letters[i] for i, other in enumerate(places) if other == index)
        for index in {index for index in places if index is not None}
    }
    earliest = min(index for index in places if index is not None)
    told = f"first {earliest} tokens" if earliest else "very first token"
    expect(board.locator(".compare .verdict")).to_contain_text(told)


def test_seeds_alone_part_the_texts_and_the_same_settings_do_not(board):
    choose(board, "seeds")
    expect(columns(board).locator("h3")).to_have_text(["Seed 1", "Seed 2", "Seed 3", "Seed 4"])
    put(board, 1, "Seed", "1")
    compare(board, length=12)
    done = finished(board)
    one, same, *others = (column["ids"] for column in done["columns"])
    assert one == same
    assert all(ids != one for ids in others)
    expect(columns(board).nth(1)).to_contain_text("The same as A all the way")


def test_a_click_on_a_chip_shows_that_steps_distribution_beside_the_references(board):
    compare(board, length=10)
    done = finished(board)
    parted = done["parted"][2]
    chips(board, 2).nth(parted).click()
    near = board.locator(".compare .closeup")
    near.wait_for()
    names = near.locator(".picture h4:visible")
    expect(names).to_have_text([re.compile("^C"), re.compile("^A")])
    bars = near.locator(".picture").first.locator("button.bar-row[data-token]:visible")
    expect(bars).to_have_count(10)
    expect(near.locator(".js-plotly-plot")).to_have_count(2)
    near.locator("select").select_option("20")
    expect(board.locator(".compare .picture:first-child [data-token]")).to_have_count(20)
    near.get_by_role("button", name="Close").click()
    near.wait_for(state="hidden")
    expect(chips(board, 2).nth(parted)).to_be_focused()
    # Past the parting the texts differ, and so does what the model offers: one picture.
    chips(board, 2).nth(parted + 2).click()
    near.wait_for()
    expect(near.locator(".picture:visible")).to_have_count(1)
    board.keyboard.press("Escape")
    near.wait_for(state="hidden")


def test_stop_ends_all_columns_midway(board, app):
    compare(board, length=200)
    until(board, WRITTEN.format(3))
    go(board).click()
    finished(board)
    assert app.idle(within_s=10)
    drawn(board)
    done = state(board)
    assert all(column["steps"] < 200 for column in done["columns"])
    assert {column["reason"] for column in done["columns"]} <= {"cancelled", "eos"}
    board.wait_for_timeout(500)  # nothing more is to come
    assert state(board)["columns"] == done["columns"]


def test_stop_pressed_before_the_first_token_is_not_lost(board, app):
    board.locator(".compare .limit .number").fill("300")
    board.evaluate(
        "() => { const go = document.querySelector('.compare .go'); go.click(); go.click(); }"
    )
    until(board, f"!{STATE}.running")
    assert app.idle(within_s=20)
    columns = state(board)["columns"]
    assert all(column["steps"] < 300 for column in columns)
    assert {column["reason"] for column in columns} <= {"cancelled", "eos"}


def test_a_new_set_of_columns_ends_the_old_comparison_and_a_closed_page_the_new(visit, app):
    page = opened(visit())
    compare(page, length=300)
    until(page, WRITTEN.format(2))
    choose(page, "cut")
    compare(page, length=5)
    done = finished(page)
    assert [column["steps"] for column in done["columns"]] == [5, 5, 5]
    assert app.idle(within_s=10)
    compare(page, length=300)
    until(page, WRITTEN.format(2))
    page.close()
    assert app.idle(within_s=10)


def test_a_comparison_and_a_run_on_decode_know_nothing_of_each_other(page):
    stage = "window.playground.stage.state()"
    page.locator("#prompt textarea").fill("Once upon a time")
    page.locator("#seed input, #seed textarea").fill("7")
    field = page.locator("#max_new_tokens input[type=number]")
    field.fill("40")
    field.press("Tab")
    page.locator("#generate").click()
    until(page, f"{stage}.steps >= 2")
    opened(page)
    compare(page, length=8)
    finished(page)
    page.wait_for_function(f"!{stage}.running && {stage}.steps === 40", timeout=120_000)


def test_a_removed_column_stops_and_the_others_go_on(board):
    compare(board, length=40)
    until(board, WRITTEN.format(2))
    columns(board).nth(1).locator(".remove").click()
    expect(columns(board)).to_have_count(2)
    done = finished(board)
    assert [column["reason"] for column in done["columns"]] == ["length", "length"]


def test_columns_come_and_go_between_two_and_six(board):
    add = board.locator(".compare select.add")
    for count, kind in enumerate(("top_k", "top_p", "seed"), start=4):
        add.select_option(kind)
        expect(columns(board)).to_have_count(count)
    expect(add).to_be_disabled()
    names = columns(board).locator("h3")
    expect(names).to_have_count(6)
    assert names.all_inner_texts()[3:] == ["Top-k", "Top-p", "Seed 7"]
    for left in (5, 4, 3, 2):
        columns(board).first.locator(".remove").click()
        expect(columns(board)).to_have_count(left)
    expect(columns(board).first.locator(".remove")).to_be_disabled()
    expect(columns(board).locator(".letter")).to_have_text(["A", "B"])
    assert len(state(board)["columns"]) == 2


def test_what_one_column_gets_wrong_is_no_matter_of_the_others(board):
    put(board, 1, "Temperature", "warm")
    put(board, 2, "Seed", "seven")
    compare(board, length=6)
    done = finished(board)
    assert [column["steps"] for column in done["columns"]] == [6, 0, 0]
    wrong = {1: ("Temperature", "“warm”", "0 to 100"), 2: ("Seed", "“seven”")}
    for place, words in wrong.items():
        for word in words:
            expect(columns(board).nth(place).get_by_role("alert")).to_contain_text(word)
    put(board, 1, "Temperature", "0,5")  # a comma is a decimal point too
    put(board, 2, "Seed", "7")
    compare(board)
    done = finished(board)
    assert [column["steps"] for column in done["columns"]] == [6, 6, 6]


def test_a_bad_length_is_said_in_every_column(board):
    compare(board, length="0")
    for place in range(3):
        expect(columns(board).nth(place).get_by_role("alert")).to_contain_text("Length")
    expect(go(board)).to_have_text("Compare")


def test_nothing_is_lost_where_messages_are(board):
    """Gradio keeps only the newest of several values that come at once."""
    board.evaluate(
        """() => {
            const { comparison } = window.playgroundCompare;
            const receive = comparison.receive;
            let count = 0;
            comparison.receive = (message) => {
                const over = Object.keys(message.finished ?? {}).length === 3;
                if (over || (count += 1) % 3 === 0) receive(message);
            };
        }"""
    )
    compare(board, length=24)
    board.wait_for_function(
        f"{STATE}.columns.every((column) => column.steps === 24)", timeout=120_000
    )
    done = finished(board)
    assert [column["seed"] for column in done["columns"]][1:] == [6, 6]


def test_a_column_that_waits_says_its_place(board):
    board.evaluate(
        """() => {
            const { comparison } = window.playgroundCompare;
            const receive = comparison.receive;
            comparison.receive = ({ comparison, columns, refused }) =>
                receive({ comparison, columns, refused, waiting: { 1: 3 } });
        }"""
    )
    compare(board, length=200)
    status = columns(board).nth(1).get_by_role("status")
    expect(status).to_contain_text("number 3 in the queue")
    go(board).click()


def test_nothing_moves_while_the_texts_grow(board):
    def layout() -> list[dict]:
        parts = board.locator(".compare .column, .compare .column .flow, .compare .measures").all()
        return [part.bounding_box() for part in parts]

    compare(board, length=30)
    until(board, WRITTEN.format(2))
    drawn(board)
    early = layout()
    finished(board)
    assert layout() == early


def test_a_phone_needs_no_sideways_scrolling(visit):
    sizes = [{"width": width, "height": 780} for width in (320, 390)]
    page = opened(visit(viewport=sizes[0]))
    choose(page, "all")
    compare(page, length=8)
    finished(page)
    chips(page, 1).first.click()
    columns(page).nth(2).locator(".settings > summary").click()
    for size in sizes:
        page.set_viewport_size(size)
        drawn(page)
        page.wait_for_function(  # pictures follow a new width a little later
            "(width) => innerWidth === width && document.documentElement.scrollWidth <= width",
            arg=size["width"],
            timeout=20_000,
        )
        boxes = [columns(page).nth(place).bounding_box() for place in range(6)]
        assert [box["y"] for box in boxes] == sorted({box["y"] for box in boxes})
        assert len({box["width"] for box in boxes}) == 1


def test_what_people_type_is_text_and_never_run(board):
    for prompt in (
        "<img src=x onerror=window.hit=1><script>window.hit=1</script> $x^2$ **bold**",
        "\u202eright to left\u202c שלום مرحبا",
        "",
    ):
        compare(board, prompt, 4)
        finished(board)
        chips(board, 0).first.click()
        drawn(board)
        assert board.evaluate("window.hit") is None, prompt
        expect(board.locator(".compare :is(img, script, strong, iframe)")).to_have_count(0)
        expect(board.locator(".compare .ask textarea")).to_have_value(prompt)


def test_the_keyboard_alone_compares_and_looks(board):
    go(board).focus()
    board.keyboard.press("Enter")
    until(board, WRITTEN.format(2))
    board.keyboard.press("Enter")
    finished(board)
    expect(go(board)).to_be_focused()
    chips(board, 1).first.focus()
    board.keyboard.press("ArrowRight")
    assert state(board)["selected"]["index"] == 1
    board.keyboard.press("Home")
    assert state(board)["selected"]["index"] == 0


def test_a_turkish_browser_gets_a_turkish_board_and_the_switch_keeps_the_texts(visit):
    page = opened(visit(locale="tr-TR"))
    expect(page.locator("h1")).to_have_text("Strateji neyi değiştirir?", use_inner_text=True)
    expect(go(page)).to_have_text("Karşılaştır")
    compare(page, length=5)
    before = finished(page)
    expect(columns(page).first.locator('[data-measure="logprob"] dd')).to_contain_text(",")
    page.locator("#language").get_by_text("English").click()
    expect(go(page)).to_have_text("Compare")
    expect(chips(page, 0)).to_have_count(5)
    assert state(page)["columns"] == before["columns"]
