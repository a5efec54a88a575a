"""Wherever within a character a text ends, and however: it is what its pieces say, no U+FFFD."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tiny_models
from deciders import Dictated
from engine_cases import asked, drained
from hypothesis import given, settings
from hypothesis import strategies as st

from model import Engine, Run

END = tiny_models.tokenizer().convert_tokens_to_ids(tiny_models.END)
BEFORE = 3  # tokens of the prompt
REASONS = ("length", "stop", "eos", "cancelled", "error")

# None of them are in the small vocabulary: every byte is a token.
texts = st.text("é€🎈", min_size=1, max_size=5)


@pytest.fixture(scope="module")
def engine():
    model = tiny_models.ending(tiny_models.model(), END)
    with Engine(model, tiny_models.tokenizer(), threaded=False) as made:
        yield made


def tokens(text: str) -> list[int]:
    ids = tiny_models.tokenizer().encode(text)
    assert len(ids) == len(text.encode())
    return ids


def whole(script: Sequence[int], text: str) -> str:
    """The characters of `text` of which all bytes are written."""
    return text.encode()[: len(script)].decode("utf-8", "ignore")


def agrees(engine: Engine, run: Run, text: str) -> None:
    """The text, the pieces of its steps and its chips say the same."""
    assert run.finished.text == "".join(step.text for step in run.steps) == text
    ids = [step.token_id for step in run.steps]
    assert engine.token_text.text(ids, before=run.prompt_ids) == text
    for step in run.steps:
        assert "\ufffd" not in step.label
        assert step.text or step.label.startswith("⟨")  # a chip that names its byte


@pytest.mark.usefixtures("faults_are_meant")
@pytest.mark.parametrize("reason", REASONS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(text=texts, data=st.data())
def test_however_it_ends(engine: Engine, reason: str, text: str, data: st.DataObject) -> None:
    script = tokens(text)
    script = script[: data.draw(st.integers(1, len(script)))]
    ending = {"stop": tokens("!"), "eos": [END]}.get(reason, [])
    strategy = Dictated((*script, *ending), BEFORE)
    most = len(script) if reason == "length" else 100
    stop = "!" if reason == "stop" else ()
    request = asked(None, token_ids=[5] * BEFORE, strategy=strategy, max_new_tokens=most, stop=stop)
    run = engine.stream(request)
    if reason == "cancelled":
        while len(run.steps) < len(script):
            engine.step()
        run.cancel()
    assert drained(run)[-1].reason == reason
    if reason == "stop":
        assert run.finished.text == whole(script, text)
        assert run.finished.text + "!" == "".join(step.text for step in run.steps)
    else:
        agrees(engine, run, whole(script, text))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(text=texts, other=texts, data=st.data())
def test_after_a_forced_byte(engine: Engine, text: str, other: str, data: st.DataObject) -> None:
    """Also one that no character goes on with, and one that is the end of the text."""
    script, forced = tokens(text), data.draw(st.sampled_from(tokens(other)))
    at = data.draw(st.integers(0, len(script) - 1))
    strategy = Dictated((*script, *tokens("a")), BEFORE)
    request = asked(None, token_ids=[5] * BEFORE, strategy=strategy, max_new_tokens=len(script) + 1)
    run = engine.stream(request)
    drained(run)
    agrees(engine, run, text + "a")
    branch = run.fork(at, forced)
    drained(branch)
    ids = [*script, *tokens("a")]
    ids[at] = forced
    vocabulary = {
        token: byte for c in "aé€🎈" for token, byte in zip(tokens(c), c.encode(), strict=True)
    }
    written = bytes(vocabulary[token_id] for token_id in ids)
    agrees(engine, branch, written.decode("utf-8", "ignore"))
    single = run.branch(at, token_id=forced, more=1)
    drained(single)
    agrees(engine, single, written[: at + 1].decode("utf-8", "ignore"))
