"""Slots of the KV cache, without a model: nobody's place is another's, and memory is bounded."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from model import decoding
from model.kv_cache import (
    BANK_TOKENS,
    CHUNK,
    GRAIN,
    MOST_ROWS,
    Layout,
    Parked,
    Slot,
    Slots,
    capacity,
    longest,
)

# Two layers of different shapes, keys and values of different sizes.
LAYOUT = Layout(((2, 3, 2), (1, 2, 4)), torch.float32, torch.device("cpu"))
PER_TOKEN = (2 * 5 + 6) * 4


def slots(spare: int = 10**6, packed: bool = True) -> Slots:
    """Whose banks may have rows for so many tokens that nobody uses."""
    made = Slots(LAYOUT, packed)
    made.spare = spare * PER_TOKEN
    return made


def write(slot: Slot, marks: list[int]) -> None:
    """As a pass does: keys and values of new tokens, a number of its own in each."""
    slot.reserve(slot.length + len(marks))
    for i in range(len(LAYOUT.layers)):
        for part, states in enumerate(slot.layer(i)):
            new = torch.tensor(marks, dtype=torch.float32) + part / 4 + i / 2
            states[:, slot.length : slot.length + len(marks)] = new[None, :, None]
    slot.advance(len(marks))


def read(rows: list[tuple[torch.Tensor, torch.Tensor]], length: int) -> list[int]:
    """The marks again; every place of every layer must hold them."""
    marks = rows[0][0][0, :length, 0]
    for i, pair in enumerate(rows):
        for part, states in enumerate(pair):
            assert (states[:, :length] == (marks + part / 4 + i / 2)[None, :, None]).all()
    return marks.int().tolist()


def held(slot: Slot) -> list[int]:
    return read([slot.layer(i) for i in range(len(LAYOUT.layers))], slot.length)


sizes = st.one_of(st.just(GRAIN), st.integers(60, 140), st.integers(200, 700))


class Places(RuleBasedStateMachine):
    """Rows come, grow, fork and go. Every token that was ever written has its own number."""

    @initialize()
    def open(self) -> None:
        self.slots = slots()
        self.wanted: dict[Slot, list[int]] = {}
        self.most: dict[Slot, int] = {}  # tokens that it ever held
        self.parked: list[tuple[Parked, list[int]]] = []
        self.fresh = itertools.count()

    def one(self, number: int) -> Slot:
        return list(self.wanted)[number % len(self.wanted)]

    @rule(tokens=sizes, prompt=st.integers(0, 99))
    def take(self, tokens: int, prompt: int) -> None:
        before = self.slots.unused
        slot = self.slots.take(tokens, prompt)
        assert self.slots.unused <= max(before, self.slots.spare)
        assert tokens <= slot.bank.capacity == capacity(tokens)
        assert (slot.length, slot.exact, slot.prompt) == (0, 0, prompt)
        self.wanted[slot] = []

    @precondition(lambda self: self.wanted)
    @rule(number=st.integers(0, 99), count=st.one_of(st.just(1), st.integers(1, 90)))
    def advance(self, number: int, count: int) -> None:
        """Also beyond what was asked for: then it moves."""
        slot = self.one(number)
        marks = [next(self.fresh) for _ in range(count)]
        write(slot, marks)
        self.wanted[slot] += marks

    @precondition(lambda self: self.wanted)
    @rule(number=st.integers(0, 99), length=st.integers(0, 200))
    def truncate(self, number: int, length: int) -> None:
        slot = self.one(number)
        slot.truncate(length)
        del self.wanted[slot][length:]

    @precondition(lambda self: self.wanted)
    @rule(number=st.integers(0, 99), length=st.none() | st.integers(0, 200))
    def fork(self, number: int, length: int | None) -> None:
        slot = self.one(number)
        length = None if length is None else min(length, slot.length)
        twin = slot.fork(length)
        assert twin.exact == min(slot.exact, twin.length)
        assert twin.prompt == slot.prompt
        self.wanted[twin] = self.wanted[slot][:length]

    @precondition(lambda self: self.wanted)
    @rule(number=st.integers(0, 99))
    def park(self, number: int) -> None:
        slot = self.one(number)
        copied = slot.park()
        assert copied.nbytes == slot.length * PER_TOKEN
        assert (copied.length, copied.prompt, copied.exact) == (
            slot.length,
            slot.prompt,
            slot.exact,
        )
        self.parked.append((copied, list(self.wanted[slot])))

    @precondition(lambda self: self.parked)
    @rule(number=st.integers(0, 99), length=st.integers(0, 200), spare=sizes)
    def load(self, number: int, length: int, spare: int) -> None:
        copied, marks = self.parked[number % len(self.parked)]
        length = min(length, copied.length)
        slot = self.slots.take(length + spare)
        slot.load(copied, length)
        assert slot.exact == min(copied.exact, length)
        self.wanted[slot] = marks[:length]

    @precondition(lambda self: self.wanted)
    @rule(number=st.integers(0, 99))
    def release(self, number: int) -> None:
        slot = self.one(number)
        slot.release()
        del self.wanted[slot]

    @rule(tokens=st.sampled_from([0, 64, 500, 3000, 10**6]))
    def spare(self, tokens: int) -> None:
        self.slots.spare = tokens * PER_TOKEN

    @rule(tokens=st.sampled_from([0, 64, 500, 3000]))
    def tighten(self, tokens: int) -> None:
        self.slots.tighten(tokens * PER_TOKEN)
        assert self.slots.unused <= tokens * PER_TOKEN

    @invariant()
    def rows_are_dense(self) -> None:
        """No row is lost or shared; the ones in use come first; only a last bank has room."""
        found = []
        for size, banks in getattr(self, "slots", slots())._banks.items():
            assert not any(bank.unused for bank in banks[:-1])
            for bank in banks:
                assert bank.capacity == size
                assert 0 < len(bank.slots) <= bank.rows
                assert all(s.bank is bank and s.row == row for row, s in enumerate(bank.slots))
                found += bank.slots
        assert len(found) == len(set(found))
        assert set(found) == set(getattr(self, "wanted", ()))

    @invariant()
    def everyone_has_their_own(self) -> None:
        for slot, marks in getattr(self, "wanted", {}).items():
            assert slot.length == len(marks)
            assert slot.exact <= slot.length
            assert held(slot) == marks
        for copied, marks in getattr(self, "parked", ()):
            assert read(list(copied.layers), copied.length) == marks

    @invariant()
    def nothing_is_left_of_others(self) -> None:
        """Behind all that a row itself has written there are zeros: it is read there, masked."""
        for slot, marks in getattr(self, "wanted", {}).items():
            most = self.most[slot] = max(self.most.get(slot, 0), len(marks))
            for states in (states for i in range(2) for states in slot.layer(i)):
                assert not states[:, most:].any()

    @invariant()
    def memory_is_counted(self) -> None:
        if not hasattr(self, "slots"):
            return
        banks = [bank for banks in self.slots._banks.values() for bank in banks]
        there = sum(states.nbytes for b in banks for layer in b.layers for states in layer)
        assert self.slots.used == sum(s.bank.capacity for s in self.wanted) * PER_TOKEN
        assert self.slots.used + self.slots.unused == there

    def teardown(self) -> None:
        for slot in getattr(self, "wanted", ()):
            slot.release()
        if hasattr(self, "slots"):
            assert self.slots.used == self.slots.unused == 0
            assert not any(self.slots._banks.values())


def test_every_row_keeps_its_own_whatever_moves() -> None:
    run_state_machine_as_test(
        Places,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_many_short_rows_share_a_bank_where_there_is_room_for_it() -> None:
    roomy, narrow = slots(), slots(2 * GRAIN)
    for places in (roomy, narrow):
        for _ in range(MOST_ROWS + 1):
            places.take(GRAIN)
    assert [len(bank.slots) for bank in roomy._banks[GRAIN]] == [MOST_ROWS, 1]
    assert {bank.rows for bank in narrow._banks[GRAIN]} == {3}
    long = [roomy.take(BANK_TOKENS) for _ in range(2)]
    assert long[0].bank is not long[1].bank
    for places in (roomy, narrow):
        places.forget()
        assert places.used == places.unused == 0


def test_empty_rows_give_way() -> None:
    places = slots()
    rows = [places.take(GRAIN) for _ in range(5)]
    for number, row in enumerate(rows):
        write(row, [number] * 40)
    assert places.unused == (MOST_ROWS - 5) * GRAIN * PER_TOKEN
    rows.pop(1).release()
    places.tighten(0)
    assert (places.used, places.unused) == (4 * GRAIN * PER_TOKEN, 0)
    assert sorted(held(row)[0] for row in rows) == [0, 2, 3, 4]
    assert places.take(GRAIN).bank is not rows[0].bank


def test_who_comes_next_finds_nothing() -> None:
    """Neither where a row was given back, nor where another one moved into its place."""
    places = slots()
    rows = [places.take(GRAIN) for _ in range(4)]
    for row, count in zip(rows, (9, 50, 9, 50), strict=True):
        write(row, [7] * count)
    rows[3].release()
    rows[1].release()  # the third moves here
    new = [places.take(GRAIN) for _ in range(2)]
    assert [row.row for row in (rows[2], *new)] == [1, 2, 3]
    for i, row in itertools.product(range(2), (rows[2], *new)):
        for states in row.layer(i):
            assert not states[:, row.length :].any()


# sizes


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 10**7))
def test_a_capacity_is_an_eighth_or_a_grain_too_large_at_most(tokens: int) -> None:
    size = capacity(tokens)
    assert tokens <= size
    assert size - tokens < max(GRAIN, tokens / 8) or tokens == 0
    assert size % GRAIN == 0
    assert capacity(size) == size
    assert capacity(tokens + 1) >= size


def test_few_sizes_are_there_so_that_rows_share_banks() -> None:
    assert len({capacity(n) for n in range(1024, 2049)}) <= 9


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(st.integers(0, 2000), st.integers(0, 10**7)))
def test_the_longest_text_of_a_room_is_the_longest(room: int) -> None:
    length = longest(room)
    assert length == 0 or capacity(length) <= room
    assert capacity(length + 1) > room


# how a row runs what it has to


@pytest.mark.parametrize(
    ("packed", "allowance", "held", "unfed", "wanted", "passes"),
    [
        # as the model runs it: a chunk, of 3, at a time, whatever is allowed
        (False, 99, 0, 10, 1, [(3, 0), (3, 0), (3, 0), (1, 1)]),
        (False, 99, 0, 12, 1, [(3, 0), (3, 0), (3, 0), (1, 0), (2, 1)]),  # the prompt is of 10
        (False, 99, 9, 1, 1, [(1, 1)]),
        (False, 99, 10, 1, 1, [(1, 1)]),
        (False, 99, 10, 7, 1, [(3, 0), (3, 0), (1, 1)]),
        (False, 99, 10, 5, 5, [(5, 5)]),  # what is wanted together comes together
        (False, 99, 10, 7, 5, [(2, 0), (5, 5)]),
        (False, 99, 8, 4, 3, [(1, 0), (3, 3)]),
        # packed: as many whole chunks as are allowed, and at least one
        (True, 0, 0, 10, 1, [(3, 0), (3, 0), (3, 0), (1, 1)]),
        (True, 5, 0, 10, 1, [(3, 0), (3, 0), (3, 0), (1, 1)]),
        (True, 8, 0, 10, 1, [(6, 0), (4, 1)]),
        (True, 8, 3, 7, 1, [(6, 0), (1, 1)]),
        (True, 8, 5, 5, 1, [(4, 0), (1, 1)]),  # to the end of a chunk, wherever it begins
        (True, 99, 0, 10, 1, [(10, 1)]),
        (True, 99, 0, 14, 1, [(10, 0), (4, 1)]),
        (True, 5, 10, 9, 1, [(5, 0), (4, 1)]),  # behind the prompt there are no chunks
        (True, 99, 10, 5, 5, [(5, 5)]),
        (True, 1, 10, 5, 5, [(5, 5)]),
        (True, 1, 10, 7, 5, [(2, 0), (5, 5)]),
    ],
)
def test_passes_over_a_prompt_and_what_is_behind_it(
    short_chunks: None,
    packed: bool,
    allowance: int,
    held: int,
    unfed: int,
    wanted: int,
    passes: list[tuple[int, int]],
) -> None:
    slot, made = slots(0, packed).take(40, 10), []
    slot.length = slot.exact = held
    tokens = array("q", range(unfed))
    while tokens:
        feed = decoding.next_feed(tokens, slot, wanted, allowance)
        count = len(feed.token_ids)
        made.append((count, feed.logits))
        assert feed.slot is slot
        assert feed.token_ids == tokens[:count]
        tokens = tokens[count:]
        slot.advance(count)
    assert made == passes


@pytest.mark.parametrize(
    ("packed", "prompt", "counts", "exact"),
    [
        (True, 10, [3, 3, 3, 1, 1, 1], 12),
        (True, 10, [6, 4, 3], 13),  # several chunks, and several tokens behind the prompt
        (True, 10, [2], 0),  # half a chunk: its rows attended with fewer others
        (True, 10, [3, 2, 1, 4], 3),  # and so did all that follows it
        (True, 10, [13], 13),
        (True, 2, [2, 1], 3),
        (False, 10, [3, 3, 3, 1, 1, 1], 12),
        (False, 10, [6, 4], 0),
        (False, 10, [3, 3, 3, 1, 2, 1], 10),
    ],
)
def test_how_much_was_run_in_the_usual_way(
    short_chunks: None, packed: bool, prompt: int, counts: list[int], exact: int
) -> None:
    slot = slots(0, packed).take(40, prompt)
    for count in counts:
        slot.advance(count)
    assert (slot.length, slot.exact) == (sum(counts), exact)
    slot.truncate(2)
    assert (slot.length, slot.exact) == (2, min(exact, 2))


def test_a_chunk_is_a_multiple_of_what_is_looked_at() -> None:
    """Else a prompt's attention would depend on the room behind it."""
    assert CHUNK % GRAIN == 0 or GRAIN % CHUNK == 0


@pytest.mark.parametrize("act", ["take", "fork", "reserve"])
def test_no_memory_leaves_everything_as_it_was(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = slots(0)  # a bank a row
    slot = full.take(GRAIN)
    write(slot, list(range(40)))

    def none(*_: int) -> None:
        raise MemoryError

    monkeypatch.setattr(Layout, "zeros", none)
    acts: dict[str, Callable[[], object]] = {
        "take": lambda: full.take(10),
        "fork": slot.fork,
        "reserve": lambda: slot.reserve(GRAIN + 1),
    }
    with pytest.raises(MemoryError):
        acts[act]()
    assert held(slot) == list(range(40))
    assert (full.used, full.unused) == (GRAIN * PER_TOKEN, 0)
    slot.release()
    assert full.used == full.unused == 0
    monkeypatch.undo()
    assert full.take(GRAIN).row == 0
