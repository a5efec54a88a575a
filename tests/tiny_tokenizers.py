"""Small tokenizers of every kind, trained on a few lines, and their vocabularies as token text."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import HealthCheck, settings
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
        self.convert_ids_to_tokens = tokenizer.convert_ids_to_tokens

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


def whole(text: str) -> str:
    """A text but for U+FFFD, which the library writes for bytes of no character."""
    return text.replace("\ufffd", "")


def within(make, ids, special=False) -> list[int]:
    """Arbitrary numbers as ids of the vocabulary, padding rows included."""
    tokens, size = vocabulary_of(make), len(make()) + PADDING_ROWS
    ids = [token_id % size for token_id in ids]
    return [i for i in ids if special or not tokens.is_special(i)]


def id_of(make, token: str) -> int:
    return make().get_vocab()[token]
