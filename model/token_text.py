"""What a token adds to the running text, and how a token is shown to a person.

Text goes through bytes. A byte-level vocabulary (GPT-2; Radford et al. 2019) has tokens that hold
a part of a character only, and so has the byte fallback of sentencepiece (Kudo & Richardson 2018).
Every token is therefore looked up once as the bytes that it adds, and an incremental UTF-8 decoder
turns them into text: constant work per token. A text holds whole characters only: bytes that make
none add nothing to it (labels show them, as `⟨E2 9F⟩`), and U+FFFD stands in a text only where the
model wrote that character. transformers' `decode` puts U+FFFD for every such byte or sequence.
"""

from __future__ import annotations

import codecs
import json
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

# Decoders of the `tokenizers` library under which a token adds the same text wherever it stands,
# except that the very first one may differ (no space before it). Others are decoded in windows.
_PLACELESS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BROKEN = "\N{REPLACEMENT CHARACTER}"
# How vocabularies spell that character where it is really meant: as itself, in the byte-level
# alphabet, in byte fallback.
_MEANT = (_BROKEN, "ï¿½", "<0xEF><0xBF><0xBD>")
_LONGEST_WINDOW = 32  # tokens; reached only where each of them ends within a character

# Our own signs. A token whose text really contains one of them, or a character that looks the same,
# gets it spelled out, so that a sign always means what it says.
_SIGNS = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "⟨CR⟩", "\0": "⟨NUL⟩", "\x1b": "⟨ESC⟩"}
_SIGNS |= {"\x7f": "⟨DEL⟩", "\xa0": "⟨NBSP⟩"}
_LIKE_SIGNS = set("·\u0387\u2219\u22c5\u2027\u16eb\u2e31\ua78f\uff65↵⇥◌⟨⟩\u2329\u232a")
# Characters of printable categories that nevertheless show nothing (Unicode: default-ignorable).
_BLANK = set("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U0001d159")
_BLANK |= {chr(c) for a, b in ((0x180B, 0x1810), (0xFE00, 0xFE10), (0xE0100, 0xE01F0))
           for c in range(a, b)}  # fmt: skip
# In a label a byte B that is no character by itself stands as U+DC00+B (as `surrogateescape` has
# it from 0x80 on).
_RUNS = re.compile("[\udc00-\udcff]+|(.)\\1*", re.DOTALL)
_LONGEST_RUN = 16  # of a visible character; of a sign 4, of a spelled out character 1
_LONGEST_LABEL, _HEAD, _TAIL = 60, 40, 12


class TokenText:
    """The vocabulary of one tokenizer as text. Safe to use from several threads.

    Args:
        tokenizer: a transformers tokenizer; fast ones are read through their `tokenizers` backend,
            others through `decode` over small windows.
        vocab_size: number of logits of the model; may exceed the tokenizer's vocabulary (padding
            rows), which in turn may have holes. Those ids are labelled "unused" and add no text.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._decode: Callable[[list[int]], str] = (
            partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if backend is None
            else backend.decode
        )
        decoder = _decoder_parts(backend)
        kinds = None if decoder is None else {part["type"] for part in decoder}
        self._byte_level = kinds in ({"ByteLevel"}, {"ByteLevel", "Fuse"})
        self._windowed = not self._byte_level and (kinds is None or not kinds <= _PLACELESS)
        byte_fallback = not self._windowed and "ByteFallback" in kinds
        self._word_end = next(
            (part["suffix"] for part in decoder or () if part["type"] == "BPEDecoder"), None
        )

        vocabulary = tokenizer.get_vocab()
        size = max(vocab_size, 1 + max(vocabulary.values(), default=-1))
        self._tokens: list[str | None] = [None] * size
        for token, token_id in vocabulary.items():
            self._tokens[token_id] = token
        self._byte_tokens = {
            token_id: int(match[1], 16)
            for token, token_id in (vocabulary.items() if byte_fallback else ())
            if len(token) == 6 and (match := _BYTE_TOKEN.fullmatch(token))
        }
        special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
        named = [i for i in tokenizer.all_special_ids if i is not None and i < size]
        self._special = {i for i in (*special, *named) if self._tokens[i] is not None}

        self._lock = threading.RLock()
        self._added: list[bytes] | None = None
        self._labels: list[str] | None = None

    def label(self, token_id: int) -> str:
        """The token for people: white space, control and special characters visible, unique.

        No two labels of a vocabulary are equal, also not after NFKC normalisation: later ones of
        the same look end in their id, `⟨#1234⟩`. `⟨…⟩` always is a sign of ours: a special token,
        bytes that are no whole character (`⟨E2 9F⟩`, in the vocabulary's spelling where its bytes
        can't be told), a character that can't be seen (`⟨U+200B⟩`) or that looks like one of our
        signs, or a long run (`⟨·×60⟩`).

        Raises:
            IndexError: no logit and no token has this id.
        """
        self._check(token_id)
        if self._labels is None:
            with self._lock:
                if self._labels is None:
                    self._labels = self._label_all()
        return self._labels[token_id]

    def is_special(self, token_id: int) -> bool:
        """Whether the token steers the model instead of adding text (start, end, padding, …)."""
        return token_id in self._special

    def pieces(self, ids: Sequence[int], before: Sequence[int] = ()) -> list[str]:
        """What each of `ids` adds to the running text after `before`; joined they are `text`."""
        detokenizer = self.detokenizer(before)
        return [detokenizer.add(token_id) for token_id in ids]

    def text(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        """The running text of `ids` after `before`, special tokens left out."""
        return "".join(self.pieces(ids, before))

    def detokenizer(self, before: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer that goes on after `before`; looks at the end of `before` only."""
        # A character has at most four bytes, so at most four tokens. A window that begins within
        # a character needs room to find its feet.
        start, seen, enough = len(before), 0, _LONGEST_WINDOW if self._windowed else 4
        while start and seen < enough:
            start -= 1
            seen += self._adds_text(before[start])
        detokenizer = (_WindowDetokenizer if self._windowed else Detokenizer)(self)
        for token_id in before[start:]:
            detokenizer.add(token_id)
        return detokenizer

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < len(self._tokens):
            raise IndexError(f"token id {token_id} is outside 0 to {len(self._tokens) - 1}")

    def _adds_text(self, token_id: int) -> bool:
        self._check(token_id)
        return self._tokens[token_id] is not None and token_id not in self._special

    def _added_bytes(self, token_id: int, first: bool) -> bytes:
        """The bytes that a token adds; `first` where no text token comes before it."""
        if first and not self._byte_level and self._byte_tokens.get(token_id, 0) < 0x80:
            return self._decode([token_id]).encode()
        return self._added_by_all()[token_id]

    def _added_by_all(self) -> list[bytes]:
        if self._added is None:
            with self._lock:
                if self._added is None:
                    self._added = self._add_all()
        return self._added

    def _add_all(self) -> list[bytes]:
        """For every id the bytes that it adds within a text; empty for special and unused ones."""
        alphabet, texts, added = _byte_alphabet(), self._texts_within(), []
        for token_id, token in enumerate(self._tokens):
            if token is None or token_id in self._special:
                added.append(b"")
            elif self._byte_level:
                try:
                    added.append(bytes([alphabet[c] for c in token]))
                except KeyError:  # an added token, written as it is and not in the alphabet
                    added.append(token.encode())
            else:
                byte = self._byte_tokens.get(token_id)
                text = next(texts)
                added.append(text.encode() if byte is None else bytes([byte]))
        return added

    def _texts_within(self) -> Iterator[str]:
        """For every token that adds text, in order of ids, its text after some other word."""
        ids = [i for i, token in enumerate(self._tokens) if token is not None]
        ids = [i for i in ids if i not in self._special]
        anchor, lead = [], ""
        for token_id in ids:  # prefer a plain word: it neither swallows nor changes a neighbour
            text = self._decode([token_id])
            if text and token_id not in self._byte_tokens and _BROKEN not in text:
                anchor, lead = [token_id], text
                if text.isalpha():
                    break
        for token_id in ids:
            if self._word_end:  # shown as a space unless it ends the text
                yield self._tokens[token_id].replace(self._word_end, " ")
            else:
                yield self._decode([*anchor, token_id]).removeprefix(lead)

    def _label_all(self) -> list[str]:
        texts = [data.decode("utf-8", "surrogateescape") for data in self._added_by_all()]
        for token_id in self._special:
            core = self._tokens[token_id]
            texts[token_id] = core[1:-1] if core[:1] == "<" and core[-1:] == ">" else core
        odd = {c for c in set("".join(texts)) if c != " " and _is_odd(c)}

        labels, keys = [], []
        for token_id, (token, text) in enumerate(zip(self._tokens, texts, strict=True)):
            plain = odd.isdisjoint(text) and len(text) <= _LONGEST_RUN
            if token is None:
                label = f"⟨unused {token_id}⟩"
            elif token_id in self._special:
                label = f"⟨{_spelled(text)}⟩"
            elif token_id in self._byte_tokens:
                label = f"⟨{self._byte_tokens[token_id]:02X}⟩"
            elif not text:
                label = "⟨empty⟩"
            elif self._windowed and _BROKEN in text and not any(s in token for s in _MEANT):
                label = f"⟨{token}⟩"  # a part of a character, in the vocabulary's own spelling
            elif plain and "     " not in text:
                label = text.replace(" ", "·")
            else:
                label = _shortened(text)
            labels.append(label)
            keys.append(label if label.isascii() else unicodedata.normalize("NFKC", label))

        # Whoever is already in normal form keeps the bare label: "fi" rather than the ligature.
        taken: set[str] = set()
        order = [i for i, key in enumerate(keys) if key == labels[i]]
        order += [i for i, key in enumerate(keys) if key != labels[i]]
        for token_id in order:
            while keys[token_id] in taken:
                labels[token_id] += f"⟨#{token_id}⟩"
                keys[token_id] += f"⟨#{token_id}⟩"
            taken.add(keys[token_id])
        return labels


class Detokenizer:
    """Text token by token: constant work each, whole characters only.

    Made by `TokenText.detokenizer`. What `add` returns, joined, is the tokenizer's own decode
    without special tokens, but for U+FFFD that stands for bytes of no character: these are left
    out. A special token breaks an incomplete character off, and with byte fallback a bad byte
    doesn't spoil the whole characters among the bytes beside it.
    """

    def __init__(self, vocabulary: TokenText) -> None:
        self._vocabulary = vocabulary
        self._opened = False  # some token has added text already
        self._utf8 = codecs.getincrementaldecoder("utf-8")("ignore")

    def add(self, token_id: int) -> str:
        """What this token adds; empty while a character is incomplete (at most three bytes wait).

        Raises:
            IndexError: no logit and no token has this id.
        """
        if self._vocabulary._adds_text(token_id):
            return self._append(token_id)
        if self._vocabulary.is_special(token_id):
            self._break_off()
        return ""

    def _append(self, token_id: int) -> str:
        data = self._vocabulary._added_bytes(token_id, first=not self._opened)
        self._opened = True
        return self._utf8.decode(data)

    def _break_off(self) -> None:
        """What is incomplete never becomes a character."""
        self._utf8.reset()


class _WindowDetokenizer(Detokenizer):
    """For decoders under which neighbours matter: decodes the few tokens since the last one that
    ended in a whole character, together with that one, and gives out what is new."""

    def __init__(self, vocabulary: TokenText) -> None:
        super().__init__(vocabulary)
        self._context: list[int] = []  # the last token that ended in a whole character
        self._window: list[int] = []  # those since then
        self._given = 0  # characters of the window that were given out

    def _append(self, token_id: int) -> str:
        self._window.append(token_id)
        text, spelled = self._window_text(), self._spelled()
        broken = len(text) - len(text.rstrip(_BROKEN))
        # At most three bytes can still become a character; what is broken before them stays so.
        waiting = 0 if spelled.endswith(_MEANT) else min(broken, 3)
        given, self._given = self._given, max(self._given, len(text) - waiting)
        new = text[given : self._given]
        if not waiting or len(self._window) >= _LONGEST_WINDOW:
            self._break_off()
        return new if any(sign in spelled for sign in _MEANT) else new.replace(_BROKEN, "")

    def _break_off(self) -> None:
        if self._window:
            self._context, self._window, self._given = self._window[-1:], [], 0

    def _window_text(self) -> str:
        decode = self._vocabulary._decode
        return decode(self._context + self._window).removeprefix(decode(self._context))

    def _spelled(self) -> str:
        return "".join(self._vocabulary._tokens[token_id] for token_id in self._window)


def _decoder_parts(backend: Any) -> list[dict] | None:
    """The steps of a `tokenizers` decoder; none where it has no decoder, None where unknown."""
    if backend is None:
        return None
    if backend.decoder is None:
        return []
    try:
        decoder = json.loads(backend.decoder.__getstate__())
    except Exception:  # a decoder written in Python has no such state
        return None
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    # More than one character taken off an end reaches across tokens.
    far = any(p["type"] == "Strip" and (p["start"] > 1 or p["stop"] > 0) for p in parts)
    return None if far else parts


def _byte_alphabet() -> dict[str, int]:
    """The 256 printable characters in which byte-level vocabularies write bytes (GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(plain))
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] == "M"


def _is_odd(char: str) -> bool:
    """Whether a label can't show this character simply as itself."""
    hidden = not char.isprintable() or char in _BLANK
    return hidden or char in _SIGNS or char in _LIKE_SIGNS or _is_mark(char)


def _sign(char: str) -> str:
    """The character as labels show it: itself, our sign for it, or its number."""
    if char in _SIGNS:
        return _SIGNS[char]
    if _is_odd(char) and (not _is_mark(char) or char in _BLANK):
        return f"⟨U+{ord(char):04X}⟩"
    return char


def _spelled(text: str) -> str:
    """`text` with everything visible and long runs counted."""
    out, on_letter = [], False
    for run in _RUNS.finditer(text):
        char, count = run[0][0], len(run[0])
        if "\udc00" <= char <= "\udcff":
            out.append(f"⟨{' '.join(f'{ord(c) & 0xFF:02X}' for c in run[0])}⟩")
            on_letter = False
            continue
        sign = _sign(char)
        counted = count > (_LONGEST_RUN if sign == char else 4 if len(sign) == 1 else 1)
        if sign == char and _is_mark(char) and (counted or not on_letter):
            sign = "◌" + sign  # a mark needs something to sit on
        if counted:
            out.append(f"⟨{sign.strip('⟨⟩')}×{count}⟩")
        else:
            out.append(sign + char * (count - 1) if sign[0] == "◌" else sign * count)
        on_letter = sign == char and not counted
    return "".join(out)


def _shortened(text: str) -> str:
    """`text` spelled out, its middle left out where that is too long to read."""
    label = _spelled(text)
    if len(label) > _LONGEST_LABEL < len(text):
        label = f"{_spelled(text[:_HEAD])}⟨…⟩{_spelled(text[-_TAIL:])}"
    return label
