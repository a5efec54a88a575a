"""Token text: the running text is the tokenizer's own, and a label means one token only."""

from __future__ import annotations

import json
import re
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE, WordLevel, WordPiece
from transformers import PreTrainedTokenizerFast

from model.token_text import TokenText

PADDING_ROWS = 7
CORPUS = [
    "The capital of France is Paris, and the cat isn't on the mat; the dog is.",
    "Türkiye'nin başkenti Ankara'dır. Çığ düştü, İstanbul'da ılık bir gün.",
    "the then there these those   and  a    line\nand\tanother\r\n\r\n12 345 \ufffd · ↵",
] * 3
TEXTS = [
    "Hello world",
    "  two spaces before, one after ",
    " ",
    "\n\n\tif x:\n        pass",
    "İstanbul'da çığ, ŞIK ılık öğün",
    "👩‍👩‍👧‍👦 and 🏳️‍🌈 and 👍🏽",
    "日本語と中文、한국어",
    "שלום עולם, مرحبا بالعالم",
    "e\u0301 n\u0303 क्षि நி ก็",
    "a \ufffd genuine one",
    "a\u200bb\u202ec\xa0d\0",
]


def fast(backend: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **special
    )


@cache
def byte_level() -> PreTrainedTokenizerFast:
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS + TEXTS, trainer)
    backend.add_tokens(["<tool>", "日本", "a b"])
    return fast(backend, bos_token="<|im_start|>", eos_token="<|im_end|>")


def sentencepiece(dummy_prefix: bool) -> PreTrainedTokenizerFast:
    """As converted from sentencepiece: ▁ for a space, `<0xNN>` for what is not in the vocabulary.

    Llama 2 puts a space before the text and takes it off again, Gemma doesn't.
    """
    trained = Tokenizer(BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=250, special_tokens=["<unk>"], show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    learnt = json.loads(trained.to_str())["model"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [*(f"<0x{byte:02X}>" for byte in range(256)), *learnt["vocab"]]:
        vocabulary.setdefault(token, len(vocabulary))
    merges = [tuple(pair) for pair in learnt["merges"]]
    backend = Tokenizer(
        BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    steps = [normalizers.Prepend("▁")] if dummy_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    parts += [decoders.Strip(" ", 1, 0)] if dummy_prefix else []
    backend.decoder = decoders.Sequence(parts)
    return fast(backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@cache
def llama() -> PreTrainedTokenizerFast:
    return sentencepiece(dummy_prefix=True)


@cache
def gemma() -> PreTrainedTokenizerFast:
    return sentencepiece(dummy_prefix=False)


@cache
def metaspace() -> PreTrainedTokenizerFast:
    """As older converters do it: one decoder for ▁ and for the space before the text."""
    backend = Tokenizer(BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=250, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return fast(backend, unk_token="<unk>")


@cache
def word_pieces() -> PreTrainedTokenizerFast:
    backend = Tokenizer(WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=220, special_tokens=["[UNK]", "[PAD]"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return fast(backend, unk_token="[UNK]", pad_token="[PAD]")


@cache
def words() -> PreTrainedTokenizerFast:
    backend = Tokenizer(WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return fast(backend, unk_token="[UNK]")


@cache
def word_ends() -> PreTrainedTokenizerFast:
    """GPT-1's: the end of a word is part of its token, and a space unless the text ends there."""
    backend = Tokenizer(BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=250, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return fast(backend, unk_token="<unk>")


class Slow:
    """Any tokenizer with only what slow ones offer. Notes the longest window it had to decode."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer, self.longest = tokenizer, 0
        self.get_vocab = tokenizer.get_vocab
        self.added_tokens_decoder = tokenizer.added_tokens_decoder
        self.all_special_ids = tokenizer.all_special_ids
        self.encode = tokenizer.encode
        self.convert_tokens_to_ids = tokenizer.convert_tokens_to_ids

    def __len__(self) -> int:
        return len(self.tokenizer)

    def decode(self, ids: list[int], **settings) -> str:
        self.longest = max(self.longest, len(ids))
        return self.tokenizer.decode(ids, **settings)


@cache
def slow() -> Slow:
    return Slow(byte_level())


@cache
def vocabulary_of(make) -> TokenText:
    return TokenText(make(), len(make()) + PADDING_ROWS)


EVERY = [byte_level, llama, gemma, metaspace, word_pieces, words, word_ends, slow]
every_tokenizer = pytest.mark.parametrize("make", EVERY)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.lists(
    st.sampled_from(TEXTS), max_size=3
).map("".join)
any_ids = st.lists(st.integers(0, 10**6), max_size=30)
quick = settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def decoded(tokenizer, ids) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def within(make, ids, special=False) -> list[int]:
    """Arbitrary numbers as ids of the vocabulary, padding rows included."""
    tokens, size = vocabulary_of(make), len(make()) + PADDING_ROWS
    ids = [token_id % size for token_id in ids]
    return [i for i in ids if special or not tokens.is_special(i)]


def id_of(make, token: str) -> int:
    return make().get_vocab()[token]


class TestRunningText:
    @every_tokenizer
    @quick
    @given(text=any_text)
    @example("".join(TEXTS))
    def test_is_the_tokenizers_own_decode(self, make, text):
        ids = make().encode(text)
        detokenizer = vocabulary_of(make).detokenizer()
        streamed = "".join([detokenizer.add(i) for i in ids]) + detokenizer.flush()
        assert streamed == decoded(make(), ids)
        assert vocabulary_of(make).text(ids) == streamed
        assert "".join(vocabulary_of(make).pieces(ids)) == streamed

    @pytest.mark.parametrize("make", [byte_level, llama, gemma])
    @pytest.mark.parametrize("text", TEXTS)
    def test_holds_the_whole_prompt(self, make, text):
        assert vocabulary_of(make).text(make().encode(text)) == text

    @pytest.mark.parametrize("make", [byte_level, metaspace, word_pieces, words, word_ends])
    @quick
    @given(ids=any_ids)
    def test_is_the_tokenizers_own_decode_of_arbitrary_ids(self, make, ids):
        ids = within(make, ids)
        assert vocabulary_of(make).text(ids) == decoded(make(), ids)

    @pytest.mark.parametrize("make", [llama, gemma])
    @quick
    @given(data=st.data())
    def test_is_the_tokenizers_own_decode_of_runs_of_bytes(self, make, data):
        # Runs all good or all bad: in a mixed one the library spoils the good characters too,
        # which were on screen by then.
        good = st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map(str.encode)
        bad = st.binary(max_size=5).filter(lambda run: not run.decode("utf-8", "ignore"))
        ids = []
        for run in data.draw(st.lists(good | bad, max_size=6)):
            ids += [id_of(make, f"<0x{byte:02X}>") for byte in run]
            ids.append(id_of(make, data.draw(st.sampled_from(["▁the", "a", "▁", "\ufffd"]))))
        ids = ids[: data.draw(st.integers(0, len(ids)))]
        tail = re.search("(?:<0x..>)*$", "".join(make().convert_ids_to_tokens(ids)))[0]
        tail = bytes.fromhex(re.sub("<0x|>", "", tail)).decode("utf-8", "replace")
        assume("\ufffd" not in tail or not tail.strip("\ufffd"))
        assert vocabulary_of(make).text(ids) == decoded(make(), ids)

    def test_a_bad_byte_spoils_only_itself(self):
        run = [id_of(gemma, f"<0x{byte:02X}>") for byte in "€".encode() + b"\xff"]
        assert vocabulary_of(gemma).pieces(run) == ["", "", "€", "\ufffd"]

    @every_tokenizer
    @quick
    @given(text=any_text, data=st.data())
    def test_goes_on_after_what_was_there_before(self, make, text, data):
        ids = make().encode(text)
        cut = data.draw(st.integers(0, len(ids)))
        detokenizer = vocabulary_of(make).detokenizer()
        shown = "".join([detokenizer.add(i) for i in ids[:cut]])
        added = vocabulary_of(make).text(ids[cut:], before=ids[:cut])
        if cut < len(ids):
            assert shown + added == decoded(make(), ids)

    @every_tokenizer
    @quick
    @given(ids=any_ids, data=st.data())
    def test_depends_on_ids_alone_not_on_where_streaming_began(self, make, ids, data):
        ids = within(make, ids, special=True)
        if make is slow:  # without byte access, an impossible sequence may be cut elsewhere
            ids = make().encode(vocabulary_of(byte_level).text(ids))
        cut = data.draw(st.integers(0, len(ids)))
        one, two = vocabulary_of(make).detokenizer(), vocabulary_of(make).detokenizer(ids[:cut])
        pieces = [one.add(i) for i in ids]
        assert [two.add(i) for i in ids[cut:]] == pieces[cut:]
        assert one.flush() == two.flush()

    @pytest.mark.parametrize("make", [byte_level, llama, gemma, slow])
    @quick
    @given(text=any_text)
    @example("👩‍👩‍👧‍👦 日本語 İçığ e\u0301")
    def test_never_shows_a_broken_character(self, make, text):
        assume("\ufffd" not in text)
        detokenizer = vocabulary_of(make).detokenizer()
        pieces = [detokenizer.add(i) for i in make().encode(text)]
        assert "\ufffd" not in "".join(pieces)
        assert detokenizer.flush() == ""

    def test_waits_for_the_last_byte_of_a_character(self):
        euro = [id_of(gemma, f"<0x{byte:02X}>") for byte in "€".encode()]
        detokenizer = vocabulary_of(gemma).detokenizer()
        assert [detokenizer.add(i) for i in euro] == ["", "", "€"]

    def test_shows_what_never_completes_and_goes_on(self):
        e2, x82, ff, end = (id_of(byte_level, c) for c in "âĤÿa")  # bytes E2, 82, FF and "a"
        tokens = vocabulary_of(byte_level)
        assert tokens.pieces([e2, x82, end]) == ["", "", "\ufffda"]
        assert tokens.pieces([e2, e2, e2]) == ["", "\ufffd", "\ufffd\ufffd"]
        assert tokens.pieces([ff] * 3) == ["\ufffd"] * 3
        assert tokens.pieces([e2, x82]) == ["", "\ufffd"]

    def test_without_byte_access_three_broken_characters_wait(self):
        ff = id_of(slow, "ÿ")
        assert vocabulary_of(slow).pieces([ff] * 5) == ["", "", "", "\ufffd", "\ufffd" * 4]

    @every_tokenizer
    @quick
    @given(ids=any_ids)
    def test_never_waits_for_long(self, make, ids):
        ids = within(make, ids)
        detokenizer = vocabulary_of(make).detokenizer()
        silent = 0
        for token_id in ids:
            piece = detokenizer.add(token_id)
            says = vocabulary_of(make).label(token_id)
            silent = 0 if piece or says.startswith("⟨unused") else silent + 1
            # Without byte access up to three broken characters wait, not up to three bytes.
            assert silent <= (9 if make is slow else 3)

    @pytest.mark.parametrize("make", [byte_level, gemma, llama])
    def test_a_special_token_ends_an_incomplete_character(self, make):
        half = make().encode("€", add_special_tokens=False)[-3:-1]
        end = make().eos_token_id
        pieces = vocabulary_of(make).pieces([*half, end, *make().encode("a")])
        assert set(pieces[len(half)]) == {"\ufffd"}
        assert "".join(pieces).endswith("a")

    def test_an_added_token_is_read_as_the_library_reads_it(self):
        # ByteLevel takes "é" for the byte E9, but leaves alone what has no place in its alphabet.
        backend = Tokenizer(BPE({"a": 0}, []))
        backend.decoder = decoders.ByteLevel()
        backend.add_tokens(["é", "日本", "a b", "<tool>"])
        ids = [1, 0, 2, 3, 4, 1, 1]
        assert TokenText(fast(backend), 5).text(ids) == decoded(fast(backend), ids)

    @every_tokenizer
    def test_special_tokens_add_nothing(self, make):
        special = [i for i in range(len(make())) if vocabulary_of(make).is_special(i)]
        text = make().encode("the cat and the dog", add_special_tokens=False)
        mixed = [token for i in text for token in (*special, i, *special)]
        assert special
        assert vocabulary_of(make).text(mixed) == decoded(make(), text) == decoded(make(), mixed)

    def test_keeps_the_space_before_a_word_but_not_the_one_before_the_text(self):
        the = id_of(llama, "▁the")
        start = id_of(llama, "<s>")
        assert vocabulary_of(llama).pieces([start, the, the]) == ["", "the", " the"]
        assert vocabulary_of(llama).pieces([the], before=[start, the]) == [" the"]
        assert vocabulary_of(gemma).pieces([the, the]) == [" the", " the"]

    @pytest.mark.parametrize("make", [llama, gemma])
    def test_a_genuine_replacement_character_is_a_character(self, make):
        genuine = id_of(make, "\ufffd")
        detokenizer = vocabulary_of(make).detokenizer()
        assert [detokenizer.add(genuine) for _ in range(3)] == ["\ufffd"] * 3
        assert detokenizer.flush() == ""

    @every_tokenizer
    def test_ids_without_a_token_add_nothing_and_others_are_refused(self, make):
        tokens, beyond = vocabulary_of(make), len(make())
        ids = make().encode("the cat", add_special_tokens=False)
        assert tokens.text([beyond, *ids, beyond + 1]) == decoded(make(), ids)
        for bad in (-1, beyond + PADDING_ROWS):
            with pytest.raises(IndexError):
                tokens.text([bad])
            with pytest.raises(IndexError):
                tokens.label(bad)

    def test_no_ids_no_text(self):
        assert vocabulary_of(byte_level).text([]) == ""
        assert vocabulary_of(byte_level).pieces([], before=[id_of(byte_level, "â")]) == []

    def test_a_long_text_is_decoded_in_small_windows(self):
        tokenizer = Slow(byte_level())
        tokens = TokenText(tokenizer, len(tokenizer))
        ids = tokenizer.encode("".join(TEXTS) * 20)
        assert tokens.text(ids[-50:], before=ids[:-50]) != ""
        assert tokens.text(ids) == "".join(TEXTS) * 20
        assert tokenizer.longest <= 33 < len(ids) / 20


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


def test_threads_share_one_vocabulary():
    tokenizer = byte_level()
    tokens, ids = TokenText(tokenizer, len(tokenizer)), tokenizer.encode("".join(TEXTS))

    def read(_) -> tuple:
        return tokens.text(ids), [tokens.label(i) for i in ids]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(read, range(32)))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == "".join(TEXTS)


@pytest.fixture(scope="module")
def real():
    from model.loading import load

    return load("smollm2-135m-instruct").tokenizer


@pytest.fixture(scope="module")
def tokens(real):
    return TokenText(real, len(real))


@pytest.mark.default_model
class TestDefaultModel:
    def test_labels_are_unique_and_visible(self, tokens, real):
        labels = [tokens.label(i) for i in range(len(real))]
        assert len({unicodedata.normalize("NFKC", label) for label in labels}) == len(labels)
        assert all(label.isprintable() for label in labels)
        assert not any(" " in re.sub("⟨[^⟩]*⟩", "", label) for label in labels)
        assert tokens.label(real.eos_token_id) == "⟨|im_end|⟩"
        assert tokens.label(real.encode(" Paris")[0]) == "·Paris"

    @pytest.mark.parametrize("text", TEXTS)
    def test_holds_the_whole_prompt(self, tokens, real, text):
        assert tokens.text(real.encode(text)) == text

    @quick
    @given(text=any_text)
    def test_is_the_tokenizers_own_decode(self, tokens, real, text):
        ids = real.encode(text)  # this vocabulary has no token for some bytes and leaves them out
        assert "".join(tokens.pieces(ids)) == decoded(real, ids)

    @quick
    @given(ids=st.lists(st.integers(17, 49151), max_size=40))
    def test_is_the_tokenizers_own_decode_of_arbitrary_ids(self, tokens, real, ids):
        assert tokens.text(ids) == decoded(real, ids)
