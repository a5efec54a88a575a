"""Running text: token by token it is the tokenizer's own, of whole characters only."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tiny_tokenizers import (
    PADDING_ROWS,
    TEXTS,
    Slow,
    any_ids,
    any_text,
    byte_level,
    decoded,
    every_tokenizer,
    fast,
    gemma,
    id_of,
    llama,
    metaspace,
    quick,
    slow,
    vocabulary_of,
    whole,
    within,
    word_ends,
    word_pieces,
    words,
)
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from model.token_text import TokenText


class TestRunningText:
    @every_tokenizer
    @quick
    @given(text=any_text)
    @example("".join(TEXTS))
    def test_is_the_tokenizers_own_decode(self, make, text):
        ids = make().encode(text)
        detokenizer = vocabulary_of(make).detokenizer()
        streamed = "".join([detokenizer.add(i) for i in ids])
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
        assert whole(vocabulary_of(make).text(ids)) == whole(decoded(make(), ids))

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
        assert whole(vocabulary_of(make).text(ids)) == whole(decoded(make(), ids))

    def test_a_bad_byte_spoils_only_itself(self):
        run = [id_of(gemma, f"<0x{byte:02X}>") for byte in "€".encode() + b"\xff"]
        assert vocabulary_of(gemma).pieces(run) == ["", "", "€", ""]

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

    @pytest.mark.parametrize("make", [byte_level, llama, gemma, slow])
    @quick
    @given(text=any_text, ids=any_ids, data=st.data())
    @example("👩‍👩‍👧‍👦 日本語 İçığ e\u0301", [], None)
    def test_holds_whole_characters_only_wherever_it_is_cut(self, make, text, ids, data):
        assume("\ufffd" not in text)
        ids = [*make().encode(text), *within(make, ids, special=True)]
        spelled = "".join(make().convert_ids_to_tokens([i for i in ids if i < len(make())]))
        assume(not any(sign in spelled for sign in ("\ufffd", "ï¿½", "<0xEF><0xBF><0xBD>")))
        cut = data.draw(st.integers(0, len(ids))) if data else len(ids)
        pieces = vocabulary_of(make).pieces(ids)
        assert "\ufffd" not in "".join(pieces)
        assert vocabulary_of(make).pieces(ids[:cut]) == pieces[:cut]

    def test_waits_for_the_last_byte_of_a_character(self):
        euro = [id_of(gemma, f"<0x{byte:02X}>") for byte in "€".encode()]
        detokenizer = vocabulary_of(gemma).detokenizer()
        assert [detokenizer.add(i) for i in euro] == ["", "", "€"]

    @pytest.mark.parametrize("make", [byte_level, slow])
    def test_leaves_out_what_never_completes_and_goes_on(self, make):
        e2, x82, ff, end = (id_of(byte_level, c) for c in "âĤÿa")  # bytes E2, 82, FF and "a"
        tokens = vocabulary_of(make)
        assert tokens.pieces([e2, x82, end]) == ["", "", "a"]
        assert tokens.pieces([e2, e2, x82, ff, end]) == ["", "", "", "", "a"]
        assert tokens.pieces([ff] * 50) == [""] * 50
        assert tokens.label(e2) == ("⟨â⟩" if make is slow else "⟨E2⟩")

    @every_tokenizer
    @quick
    @given(text=any_text)
    def test_never_waits_for_long(self, make, text):
        silent = -1  # the space before a text may be the one that isn't written
        for piece in vocabulary_of(make).pieces(make().encode(text, add_special_tokens=False)):
            silent = 0 if piece else silent + 1
            assert silent <= 3 or make in (metaspace, word_pieces, words, word_ends)

    @pytest.mark.parametrize("make", [byte_level, gemma, llama, slow])
    def test_a_special_token_breaks_an_incomplete_character_off(self, make):
        *_, first, second, third = make().encode("€", add_special_tokens=False)
        end = make().tokenizer.eos_token_id if make is slow else make().eos_token_id
        after = make().encode("a", add_special_tokens=False)
        pieces = vocabulary_of(make).pieces([first, second, end, third, *after])
        assert pieces[:4] == [""] * 4
        assert pieces[-1].strip() == "a"

    def test_an_added_token_is_read_as_the_library_reads_it(self):
        # ByteLevel takes "é" for the byte E9, but leaves alone what has no place in its alphabet.
        backend = Tokenizer(BPE({"a": 0}, []))
        backend.decoder = decoders.ByteLevel()
        backend.add_tokens(["é", "日本", "a b", "<tool>"])
        ids = [1, 0, 2, 3, 4, 1, 1]
        assert TokenText(fast(backend), 5).text(ids) == whole(decoded(fast(backend), ids))

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
        assert vocabulary_of(make).pieces([genuine] * 3) == ["\ufffd"] * 3

    @pytest.mark.parametrize("make", [byte_level, gemma, slow])
    def test_so_it_is_written_in_bytes(self, make):
        names = "<0xEF> <0xBF> <0xBD>" if make is gemma else "ï ¿ ½"
        ids = [id_of(byte_level if make is slow else make, name) for name in names.split()]
        assert vocabulary_of(make).text([*ids, *ids]) == "\ufffd" * 2

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


def test_threads_share_one_vocabulary():
    tokenizer = byte_level()
    tokens, ids = TokenText(tokenizer, len(tokenizer)), tokenizer.encode("".join(TEXTS))

    def read(_) -> tuple:
        return tokens.text(ids), [tokens.label(i) for i in ids]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(read, range(32)))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == "".join(TEXTS)
