"""Prompts: which tokens are sent, what the chat template makes, and how many there is room for."""

from __future__ import annotations

import pytest
import tiny_models
from engine_cases import Build, asked, shared

from model import Engine, FieldError


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_without_room_says_how_much_there_is(build: Build, length: int) -> None:
    engine = build("gpt2", context=64)
    with pytest.raises(FieldError, match=f"at most 63 tokens, and it has {length}") as caught:
        engine.stream(asked(None, token_ids=[5] * length))
    assert caught.value.field == "prompt"
    assert caught.value.details == {"tokens": length, "room": 63}
    assert engine.generate(asked()).finish_reason == "length"


def test_an_empty_prompt_starts_from_the_start_token() -> None:
    start = tiny_models.tokenizer().bos_token_id
    assert shared().tokenize(asked("")) == (start,)
    assert shared().tokenize(asked(None, token_ids=[])) == (start,)
    empty = shared().generate(asked(""))
    assert empty.token_ids == shared().generate(asked(None, token_ids=[start])).token_ids
    assert len(empty.token_ids) == 12


def test_chat_sends_what_the_template_makes() -> None:
    tokenizer = tiny_models.tokenizer()
    written = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    ids = shared().tokenize(asked("Hi", chat=True, system="Be brief."))
    assert list(ids) == tokenizer(written)["input_ids"]
    alone = shared().tokenize(asked("Hi", chat=True))
    assert tokenizer.decode(alone) == "<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    events = shared().generate(asked("Hi", chat=True)).events
    assert events[0].prompt_ids == alone
    assert "⟨|start|⟩" in events[0].prompt_labels


def test_chat_without_a_template_says_so(build: Build) -> None:
    engine = build(chat=False)
    with pytest.raises(FieldError, match="no chat template") as caught:
        engine.stream(asked(chat=True))
    assert (caught.value.field, caught.value.code) == ("chat", "no_chat")


def test_a_template_that_refuses_says_why() -> None:
    tokenizer = tiny_models.tokenizer().__class__(
        tokenizer_object=tiny_models.tokenizer().backend_tokenizer, bos_token=tiny_models.START
    )
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}"
        "{% endif %}{{ messages[0]['content'] }}"
    )
    engine = Engine(tiny_models.model(), tokenizer, threaded=False)
    assert engine.generate(asked(chat=True)).finish_reason == "length"
    with pytest.raises(FieldError, match="No system role") as caught:
        engine.generate(asked(chat=True, system="Be brief."))
    assert (caught.value.field, caught.value.code) == ("system", "chat_refused")
