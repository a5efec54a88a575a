"""Packed passes: any rows together give what the model gives each alone."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from tiny_models import ARCHITECTURES, UNPACKED, VOCAB, WIDTH, WINDOW

from model import packed as passes
from model.backbone import Feed, Output, TransformersBackbone
from model.kv_cache import CHUNK, Slot
from model.packed import PackedPass

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@cache
def backbone(architecture: str) -> TransformersBackbone:
    made = TransformersBackbone(tiny_models.model(architecture))
    made.slots.spare = 2**30  # rows share banks
    return made


class Row:
    """A text on its way through the model.

    Attributes:
        logits, hidden: of each position where they were wanted.
    """

    def __init__(self, places: Any, ids: list[int], prompt: int) -> None:
        self.ids, self.prompt = ids, prompt
        self.slot: Slot = places.take(len(ids), prompt)
        self.logits: dict[int, torch.Tensor] = {}
        self.hidden: dict[int, torch.Tensor] = {}

    @property
    def left(self) -> int:
        return len(self.ids) - self.slot.length

    def feed(self, count: int, wanted: int) -> Feed:
        start = self.slot.length
        return Feed(self.ids[start : start + count], self.slot, min(wanted, count))

    def take(self, output: Output) -> None:
        """After the pass; what it says is of the last tokens fed."""
        first = self.slot.length - len(output.logits)
        for i, logits in enumerate(output.logits):
            self.logits[first + i] = logits
            if output.hidden is not None:
                self.hidden[first + i] = output.hidden[i]


def texts(dice: random.Random, count: int) -> list[tuple[list[int], int]]:
    """Texts far longer than a sliding window, of some chunks or none, and their prompts."""
    made = []
    for _ in range(count):
        length = dice.choice((2, WINDOW, 3 * WINDOW, CHUNK, 3 * CHUNK + 9)) + dice.randrange(4)
        ids = [dice.randrange(VOCAB) for _ in range(length)]
        made.append((ids, dice.randrange(1, length)))
    return made


def one_by_one(model: TransformersBackbone, ids: list[int], prompt: int) -> Row:
    """Nobody else is there: the prompt by chunks, then a token at a time."""
    row = Row(model.slots, ids, prompt)
    while row.left:
        feed = row.feed(row.slot.piece(row.left, CHUNK) if row.slot.length < prompt else 1, CHUNK)
        row.take(*model.forward([feed], hidden=True))
    row.slot.release()
    return row


def in_company(model: TransformersBackbone, dice: random.Random, rows: list[Row]) -> None:
    """Until all are through: in each pass some of them, with as many tokens as it pleases."""
    while waiting := [row for row in rows if row.left]:
        some = dice.sample(waiting, dice.randint(1, len(waiting)))
        feeds = []
        for row in some:
            count = min(row.left, row.slot.piece(row.left, dice.choice((1, CHUNK, 3 * CHUNK))))
            if row.slot.length >= row.prompt:
                count = min(count, dice.choice((1, 1, 1, 2, 5)))
            feeds.append(row.feed(count, dice.choice((0, 1, count))))
        for row, output in zip(some, model.forward(feeds, dice.random() < 0.5), strict=True):
            row.take(output)


def same(model: TransformersBackbone, made: torch.Tensor, wanted: torch.Tensor) -> None:
    """To the last bit; but for rounding where the machine's matrix products mix rows."""
    if model.alone:
        assert torch.equal(made, wanted)
    else:
        torch.testing.assert_close(made, wanted, **CLOSE)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *UNPACKED])
def test_rows_in_company_give_what_the_model_gives_each(architecture: str, seed: int) -> None:
    dice, model = random.Random(seed), backbone(architecture)
    rows = [Row(model.slots, *text) for text in texts(dice, 9)]
    in_company(model, dice, rows)
    for row in rows:
        with torch.inference_mode():
            wanted = tiny_models.model(architecture)(
                torch.tensor([row.ids]), output_hidden_states=True
            )
        for at, logits in row.logits.items():
            torch.testing.assert_close(logits, wanted.logits[0, at], **CLOSE)
        for at, states in row.hidden.items():
            torch.testing.assert_close(states, wanted.hidden_states[-1][0, at], **CLOSE)
    assert sum(len(row.logits) for row in rows) > 100
    assert sum(len(row.hidden) for row in rows) > 50
    for row in rows:
        row.slot.release()
    assert model.slots.used == 0


@pytest.mark.parametrize("seed", range(3, 5))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_is_the_same_to_the_last_bit_in_any_company(architecture: str, seed: int) -> None:
    """Whoever else is there, however many tokens come at once, wherever in the cache it is."""
    dice, model = random.Random(seed), backbone(architecture)
    asked = texts(dice, 12)
    alone = [one_by_one(model, *text) for text in asked]
    rows = [Row(model.slots, *text) for text in asked]
    in_company(model, dice, rows)
    for row, lonely in zip(rows, alone, strict=True):
        assert row.slot.exact == len(row.ids)
        for at, logits in row.logits.items():
            same(model, logits, lonely.logits[at])
        for at, states in row.hidden.items():
            same(model, states, lonely.hidden[at])
        row.slot.release()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_neighbours_of_very_different_lengths(architecture: str) -> None:
    """They share a bank, and what is looked at goes as far as the longest."""
    model = backbone(architecture)
    lengths = (2, 900, 30, 500)
    asked = [
        ([(n * i) % VOCAB for i in range(length)], length - 1)
        for n, length in enumerate(lengths, 3)
    ]
    alone = [one_by_one(model, *text).logits[len(text[0]) - 1] for text in asked]
    rows = [Row(model.slots, *text) for text in asked]
    for row in rows:
        row.slot.reserve(1000)
    assert len({id(row.slot.bank) for row in rows}) == 1
    for row in rows:
        while row.left > 1:
            model.forward([row.feed(row.slot.piece(row.left, CHUNK), 0)])
    outputs = model.forward([row.feed(1, 1) for row in rows])
    for output, wanted in zip(outputs, alone, strict=True):
        same(model, output.logits[-1], wanted)
    for row in rows:
        row.slot.release()


def test_attention_that_mixes_rows_is_found_out_and_nothing_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine whose products over a longer span add up in another order."""
    weighed = passes._weighed

    def mixing(query: torch.Tensor, keys: torch.Tensor, *rest: Any) -> torch.Tensor:
        return weighed(query, keys, *rest) * (1 + 1e-6 * (keys.shape[2] > 500))

    monkeypatch.setattr(passes, "_weighed", mixing)
    model = TransformersBackbone(tiny_models.model("llama"))
    assert model.packs
    assert not model.alone


MACHINES = {
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "none of all that": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_processor_with_fewer_instructions_keeps_what_it_promises(machine: str) -> None:
    """`-rP` shows which promise each of them makes."""
    made = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, "-k", "neighbours_of_very"],
        env={**os.environ, **MACHINES[machine]},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout[-3000:]
    promise = re.search("kept apart here: (yes|no)", made.stdout)
    assert promise, made.stdout[-3000:]
    print(f"{machine}: rows in fp32 are kept apart: {promise[1]}")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_of_all_these_go_together(architecture: str) -> None:
    assert backbone(architecture).packs


OTHERS = {
    "ALiBi": lambda: tiny_models.model("bloom"),
    "soft caps": lambda: tiny_models.model("gemma2"),
    "local attention": lambda: transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=WINDOW,
            max_position_embeddings=512,
            initializer_range=0.3,
        )
    ),
    "ALiBi and rotary": lambda: transformers.FalconForCausalLM(
        transformers.FalconConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            alibi=True,
            initializer_range=0.3,
        )
    ),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_a_model_with_attention_of_its_own_is_right_all_the_same(make: Any) -> None:
    """Then its rows run one after the other."""
    torch.manual_seed(1)
    whole, dice = make().eval(), random.Random(2)
    model = TransformersBackbone(whole)
    assert not model.packs
    rows = [Row(model.slots, *text) for text in texts(dice, 5)]
    in_company(model, dice, rows)
    for row in rows:
        with torch.inference_mode():
            wanted = whole(torch.tensor([row.ids])).logits[0]
        for at, logits in row.logits.items():
            torch.testing.assert_close(logits, wanted[at], **CLOSE)
    assert sum(len(row.logits) for row in rows) > 50


def test_what_is_made_up_is_seen_by_nobody() -> None:
    """A pass of one token is padded to two, for the kernels' sake."""
    model = backbone("llama")
    row = Row(model.slots, [5, 6, 7], 2)
    packed = PackedPass([([5, 6], row.slot)], 4)
    assert packed.token_ids == [5, 6, 5, 5]
    assert packed.places == [range(2)]
    model.forward([row.feed(2, 0)])
    model.forward([row.feed(1, 1)])
    assert row.slot.length == 3
    for states in row.slot.layer(0):
        assert not states[:, 3:].any()
    row.slot.release()


def test_a_pass_that_fails_leaves_the_rows_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = backbone("llama"), list(range(20))
    wanted = one_by_one(model, ids, 10).logits[19]
    rows = [Row(model.slots, ids, 10) for _ in range(2)]
    model.forward([row.feed(10, 0) for row in rows])
    with monkeypatch.context() as broken:
        broken.setattr(model.model.lm_head, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.forward([row.feed(9, 1) for row in rows])
    assert [row.slot.length for row in rows] == [10, 10]
    for row in rows:
        row.take(*model.forward([row.feed(10, 1)]))
        torch.testing.assert_close(row.logits[19], wanted, **CLOSE)
        row.slot.release()


def test_neighbours_attend_in_one_operation_in_whatever_order_they_come() -> None:
    model = backbone("llama")
    rows = [Row(model.slots, [5] * 9, 1) for _ in range(6)]
    for row in rows:
        row.slot.advance(3)
    order = [rows[i] for i in (4, 0, 2, 1, 5)]  # all but the fourth
    packed = PackedPass([([n], row.slot) for n, row in enumerate(order)])
    assert [group.end - group.start for group in packed._groups] == [3, 2]
    assert [packed.token_ids[place.start] for place in packed.places] == list(range(5))
    for row in rows:
        row.slot.release()
