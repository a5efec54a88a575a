"""Labels: each means one token only, and shows everything that is in it."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import (
    PADDING_ROWS,
    any_text,
    byte_level,
    every_tokenizer,
    fast,
    gemma,
    id_of,
    quick,
    vocabulary_of,
    word_ends,
    word_pieces,
    words,
)
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel

from model.token_text import TokenText


def exact(texts) -> TokenText:
    """A vocabulary of these very texts."""
    backend = Tokenizer(WordLevel({text: i for i, text in enumerate(texts)}, unk_token=""))
    backend.decoder = decoders.Fuse()
    return TokenText(fast(backend), len(texts))


def text_of(label: str) -> str:
    """Reads a label back, as a person would who knows the signs."""
    names = {"CR": "\r", "NUL": "\0", "ESC": "\x1b", "DEL": "\x7f", "NBSP": "\xa0", "empty": ""}
    plain = {"·": " ", "↵": "\n", "⇥": "\t", "◌": ""}

    def sign(match: re.Match) -> str:
        inner, _, count = match[1].rpartition("×") if "×" in match[1][1:] else (match[1], 0, 1)
        if inner.startswith("U+"):
            inner = chr(int(inner[2:], 16))
        else:
            inner = names.get(inner, inner.translate(str.maketrans(plain)))
        return inner * int(count)

    label = re.sub(r"(⟨#\d+⟩)+$", "", label)
    parts = re.split(r"(⟨[^⟩]+⟩)", label)
    return "".join(
        re.sub(r"⟨([^⟩]+)⟩", sign, part) if part[:1] == "⟨" else part.translate(
            str.maketrans(plain)
        )
        for part in parts
    )  # fmt: skip


class TestLabels:
    @every_tokenizer
    def test_no_two_tokens_look_alike(self, make):
        labels = [vocabulary_of(make).label(i) for i in range(len(make()) + PADDING_ROWS)]
        assert len({unicodedata.normalize("NFKC", label) for label in labels}) == len(labels)

    @quick
    @given(
        st.lists(
            any_text
            | st.text("· \n\t\r⟨⟩×◌U+0↵\u0301\u0387\xa0\u200b", max_size=8)
            | st.builds(lambda char, n: char * n, st.characters(exclude_categories=["Cs"]),
                        st.integers(1, 99)),
            min_size=1, max_size=20, unique=True,
        )
    )  # fmt: skip
    def test_say_exactly_one_text_with_everything_visible(self, texts):
        vocabulary = exact(texts)
        labels = [vocabulary.label(i) for i in range(len(texts))]
        assert len({unicodedata.normalize("NFKC", label) for label in labels}) == len(texts)
        for text, label in zip(texts, labels, strict=True):
            assert label
            assert label.isprintable()
            assert " " not in label
            assert not unicodedata.category(label[0]).startswith("M")
            if "⟨…⟩" not in label:
                assert text_of(label) == text

    @pytest.mark.parametrize(
        ("text", "label"),
        [
            ("word", "word"),
            (" word", "·word"),
            ("    ", "····"),
            (" " * 60, "⟨·×60⟩"),
            ("\n" + " " * 12 + "x", "↵⟨·×12⟩x"),
            ("\r\n\t", "⟨CR⟩↵⇥"),
            ("-" * 80, "⟨-×80⟩"),
            ("---", "---"),
            ("·", "⟨U+00B7⟩"),
            ("↵", "⟨U+21B5⟩"),
            ("\u0387", "⟨U+0387⟩"),  # NFKC makes it a middle dot
            ("⟨·×60⟩", "⟨U+27E8⟩⟨U+00B7⟩×60⟨U+27E9⟩"),
            ("\xa0", "⟨NBSP⟩"),
            ("a\u200bb", "a⟨U+200B⟩b"),
            ("\u202eevil", "⟨U+202E⟩evil"),
            ("\u3164", "⟨U+3164⟩"),  # Hangul filler: a letter that shows nothing
            ("❤\ufe0f", "❤⟨U+FE0F⟩"),
            ("\u0301", "◌\u0301"),
            (" \u0301", "·◌\u0301"),
            ("e\u0301", "e\u0301"),
            ("ि", "◌ि"),
            ("שלום", "שלום"),
            ("İçığ", "İçığ"),
            ("", "⟨empty⟩"),
            ("\ufffd", "\ufffd"),
        ],
    )
    def test_examples(self, text, label):
        assert exact([text, "filler"]).label(0) == label

    def test_a_very_long_token_keeps_its_ends(self):
        long = [" ".join(str(n) for n in range(start, 200)) for start in (0, 1)]
        labels = [exact([*long, long[0] + "!"]).label(i) for i in range(3)]
        assert labels[0].startswith("0·1·2·3")
        assert labels[0].endswith("·198·199")
        assert max(map(len, labels)) < 80
        same_ends = [long[0].replace("100", "1OO"), long[0]]
        assert exact(same_ends).label(1) == f"{labels[0]}⟨#1⟩"

    def test_of_the_same_look_the_normal_form_keeps_the_bare_label(self):
        vocabulary = exact(["ﬁ", "fi", "\xe9", "e\u0301", "２"])
        assert [vocabulary.label(i) for i in range(5)] == [
            "ﬁ⟨#0⟩",
            "fi",
            "\xe9",
            "e\u0301⟨#3⟩",
            "２",
        ]

    def test_bytes_that_are_no_character_are_shown_as_bytes(self):
        alphabet = {"E2": "â", "9F": "Ł", "20": "Ġ"}
        for byte, token in alphabet.items():
            if byte != "20":
                label = vocabulary_of(byte_level).label(id_of(byte_level, token))
                assert label == f"⟨{byte}⟩"
        assert vocabulary_of(byte_level).label(id_of(byte_level, "Ġ")) == "·"
        backend = Tokenizer(BPE({"ĠâŁ": 0, "aâ": 1}, []))
        backend.decoder = decoders.ByteLevel()
        vocabulary = TokenText(fast(backend), 2)
        assert [vocabulary.label(i) for i in (0, 1)] == ["·⟨E2 9F⟩", "a⟨E2⟩"]

    def test_a_byte_is_not_the_character_it_would_make(self):
        tokens = vocabulary_of(gemma)
        assert tokens.label(id_of(gemma, "<0x61>")) == "⟨61⟩"
        assert tokens.label(id_of(gemma, "a")) == "a"
        assert tokens.label(id_of(gemma, "▁the")) == "·the"

    def test_special_and_unused_ones_say_so(self):
        tokens, end = vocabulary_of(byte_level), byte_level().eos_token_id
        assert tokens.label(end) == "⟨|im_end|⟩"
        assert tokens.is_special(end)
        assert tokens.label(id_of(byte_level, "<tool>")) == "<tool>"
        assert not tokens.is_special(id_of(byte_level, "<tool>"))
        unused = len(byte_level())
        assert tokens.label(unused) == f"⟨unused {unused}⟩"
        assert not tokens.is_special(unused)
        assert vocabulary_of(words).label(id_of(words, "[UNK]")) == "⟨[UNK]⟩"

    def test_a_hole_in_the_vocabulary_is_unused(self):
        backend = Tokenizer(WordLevel({"a": 0, "b": 3}, unk_token="a"))
        vocabulary = TokenText(fast(backend), 4)
        assert [vocabulary.label(i) for i in range(4)] == ["·a", "⟨unused 1⟩", "⟨unused 2⟩", "·b"]

    def test_spaces_between_words_belong_to_the_label(self):
        assert vocabulary_of(word_pieces).label(id_of(word_pieces, "the")) == "·the"
        assert vocabulary_of(word_ends).label(id_of(word_ends, "the</w>")) == "the·"
        assert vocabulary_of(word_ends).label(id_of(word_ends, "the")) == "the"
