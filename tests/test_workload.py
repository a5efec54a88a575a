"""Workloads, and the rounds that run them: who is served when, and what is measured of it."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import tiny_models
from engine_cases import Build, asked
from hypothesis import given, settings
from hypothesis import strategies as st

from model import Busy, Engine, FieldError
from model.batching import WAYS, Measures, Passage, Round
from model.workload import LENGTHS, LONGEST_SPREAD, REQUESTS, SLOTS, Arrival, Workload

PROMPTS = ["once upon a time there was", "the cat is on the mat", "Paris"]
LONG = 60.0  # seconds that no round of a tiny model takes
SOON = 0.5  # seconds; on a busy machine a thread may wait for its turn


def drawn(requests=6, shortest=1, longest=12, spread_s=0.0, slots=3, seed=7) -> Workload:
    return Workload.drawn(PROMPTS, requests, shortest, longest, spread_s, slots, seed)


def played(engine: Engine, workload: Workload, way: str) -> Round:
    round_ = Round(engine, workload, way).start()
    assert round_.wait(LONG)
    return round_


@pytest.fixture(scope="module")
def shared():
    engine = tiny_models.engine()
    yield engine
    engine.close()


# workloads


@given(
    requests=st.integers(*REQUESTS),
    lengths=st.tuples(st.integers(*LENGTHS), st.integers(*LENGTHS)).map(sorted),
    spread_s=st.floats(0, LONGEST_SPREAD),
    slots=st.integers(*SLOTS),
    seed=st.integers(0, 2**53 - 1),
)
def test_a_workload_is_what_was_asked_for_and_the_same_again(
    requests, lengths, spread_s, slots, seed
) -> None:
    values = (PROMPTS, requests, *lengths, spread_s, slots, seed)
    workload = Workload.drawn(*values)
    moments = [arrival.arrival_s for arrival in workload.arrivals]
    assert len(moments) == requests
    assert [arrival.number for arrival in workload.arrivals] == [*range(1, requests + 1)]
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert moments[-1] <= spread_s
    assert all(lengths[0] <= arrival.tokens <= lengths[1] for arrival in workload.arrivals)
    assert workload == Workload.drawn(*values)


def test_arrivals_are_spread_evenly_over_the_time() -> None:
    """Of a Poisson process with a known number the moments are independent and uniform."""
    moments = [
        arrival.arrival_s
        for seed in range(100)
        for arrival in drawn(requests=32, spread_s=10.0, seed=seed).arrivals[1:]
    ]
    quarters = [sum(low <= m < low + 2.5 for m in moments) for low in (0, 2.5, 5, 7.5)]
    expected = len(moments) / 4
    assert all(abs(count - expected) < 5 * (expected * 0.75) ** 0.5 for count in quarters)


def test_without_a_seed_one_is_picked_and_told() -> None:
    one, other = drawn(seed=None), drawn(seed=None)
    assert one.seed != other.seed
    assert drawn(seed=one.seed) == one


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests", 1),
        ("requests", 33),
        ("requests", "many"),
        ("shortest", 0),
        ("longest", 65),
        ("longest", None),
        ("spread_s", -1),
        ("spread_s", float("nan")),
        ("spread_s", 31),
        ("slots", 0),
        ("slots", 9),
        ("slots", 2.5),
        ("seed", -1),
        ("seed", "seven"),
    ],
)
def test_a_wrong_value_is_named_with_its_range(field: str, value) -> None:
    with pytest.raises(FieldError) as caught:
        drawn(**{field: value})
    assert caught.value.field == field
    assert caught.value.details.keys() >= {"low", "high"}


def test_the_longest_is_not_shorter_than_the_shortest() -> None:
    with pytest.raises(FieldError) as caught:
        drawn(shortest=20, longest=10)
    assert (caught.value.field, caught.value.details["low"]) == ("longest", 20)


# rounds


def whole(round_: Round) -> None:
    """What holds of every round that came to its end."""
    passages, workload = round_.passages, round_.workload
    assert round_.error is None
    for passage in passages:
        run = passage.run
        assert run.finished.reason == "length"
        assert len(run.steps) == len(passage.steps) == passage.arrival.tokens
        assert passage.steps == sorted(passage.steps)
        assert passage.arrival.arrival_s <= passage.started_s < passage.first_s
        assert passage.first_s <= passage.ended_s
    assert len({passage.run.handle for passage in passages}) == len(passages)
    starts = [passage.started_s for passage in passages]
    assert starts == sorted(starts), "first come, first served"
    for slot in range(workload.slots):
        here = sorted((p.started_s, p.ended_s) for p in passages if p.slot == slot)
        assert all(one[1] <= next_[0] for one, next_ in itertools.pairwise(here))
    assert {passage.slot for passage in passages} <= set(range(workload.slots))


def batches(round_: Round) -> list[list[Passage]]:
    """Those that started together."""
    by_start = itertools.groupby(round_.passages, key=lambda passage: passage.started_s)
    return [list(batch) for _, batch in by_start]


workloads = st.builds(
    drawn,
    requests=st.integers(2, 9),
    longest=st.integers(1, 12),
    spread_s=st.sampled_from([0.0, 0.02, 0.1]),
    slots=st.integers(1, 4),
    seed=st.integers(0, 1000),
)


@settings(max_examples=25, deadline=None)
@given(workload=workloads)
def test_static_batches_wait_for_the_slowest(shared: Engine, workload: Workload) -> None:
    round_ = played(shared, workload, "static")
    whole(round_)
    for batch, after in itertools.pairwise(batches(round_)):
        assert max(passage.ended_s for passage in batch) <= after[0].started_s
    for batch in batches(round_):
        # Whoever had arrived when it started is in it, up to the number of slots.
        start = batch[0].started_s
        come = [
            p
            for p in round_.passages
            if p.arrival.arrival_s <= start and p.arrival.number >= batch[0].arrival.number
        ]
        assert len(batch) == min(workload.slots, len(come))


@settings(max_examples=25, deadline=None)
@given(workload=workloads)
def test_a_free_slot_takes_the_next_request_at_once(shared: Engine, workload: Workload) -> None:
    round_ = played(shared, workload, "continuous")
    whole(round_)
    for passage in round_.passages:
        start, slot = passage.started_s, passage.slot
        left = [p.ended_s for p in round_.passages if p.slot == slot and p.ended_s <= start]
        assert start - max([passage.arrival.arrival_s, *left]) < SOON


@settings(max_examples=10, deadline=None)
@given(workload=workloads)
def test_both_ways_write_the_same_texts(shared: Engine, workload: Workload) -> None:
    texts = [
        [passage.run.finished.text for passage in played(shared, workload, way).passages]
        for way in WAYS
    ]
    assert texts[0] == texts[1]


def test_what_is_measured_follows_from_the_passages() -> None:
    def passage(number, slot, arrival, started, steps):
        arrival = Arrival(number, "a", len(steps), arrival, 0)
        return Passage(arrival, slot, started, list(steps), steps[-1])

    passages = [
        passage(1, 0, 0.0, 0.0, [1.0, 2.0, 4.0]),
        passage(2, 1, 0.0, 0.0, [1.0, 2.0]),
        passage(3, 1, 1.0, 4.0, [5.0, 8.0]),
    ]
    passages[2].held_s = 0.5
    measured = Measures.of(passages, 2, [(-1.0, 1.0), (7.0, 12.0)])
    assert measured.tokens == 7
    assert measured.total_s == 8
    assert measured.tokens_per_s == 7 / 8
    assert measured.mean_wait_s == (1 + 1 + 4) / 3
    assert measured.worst_wait_s == 4
    assert measured.slot_use == (4 + 2 + 4) / 16
    assert measured.others_share == 2 / 8
    assert measured.held_s == 0.5


def test_a_round_alone_is_undisturbed(shared: Engine) -> None:
    measured = played(shared, drawn(), "continuous").measures
    assert measured.others_share == measured.held_s == 0
    assert 0 < measured.slot_use <= 1


def test_others_who_run_meanwhile_are_noticed(build: Build) -> None:
    engine = build()
    other = engine.stream(asked(max_new_tokens=900))
    round_ = played(engine, drawn(requests=4, shortest=12, slots=2), "continuous")
    assert other.finished is None
    other.cancel()
    assert 0.2 < round_.measures.others_share <= 1
    assert round_.others


def test_a_full_engine_is_waited_for_and_counted(build: Build, monkeypatch) -> None:
    engine = build()
    refusals = itertools.count()
    stream = engine.stream

    def refuse(request):
        if next(refusals) in (1, 2, 5):
            raise Busy(3)
        return stream(request)

    monkeypatch.setattr(engine, "stream", refuse)
    round_ = played(engine, drawn(), "continuous")
    assert round_.error is None
    assert all(passage.run.finished.reason == "length" for passage in round_.passages)
    assert len([p for p in round_.passages if p.held_s > 0]) in (2, 3)
    assert round_.measures.held_s > 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spread_s", [0.0, 30.0], ids=["while decoding", "between arrivals"])
def test_cancelling_ends_it_within_a_step(build: Build, way: str, spread_s: float) -> None:
    engine = build()
    round_ = Round(engine, drawn(requests=8, shortest=64, longest=64, spread_s=spread_s), way)
    round_.start()
    time.sleep(0.1)
    round_.cancel()
    assert round_.wait(2)
    assert round_.measures is None
    assert round_.error is None
    time.sleep(0.1)
    assert engine.status().running == engine.status().waiting == 0
    assert sum(passage.run is not None for passage in round_.passages) < 8


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_ends_the_round_with_its_reason(build: Build, way: str, monkeypatch) -> None:
    engine = build()
    forward, passes = engine.backbone.forward, itertools.count()

    def break_down(*given, **options):
        if next(passes) >= 9:
            raise RuntimeError("a cosmic ray")
        return forward(*given, **options)

    monkeypatch.setattr(engine.backbone, "forward", break_down)
    round_ = played(engine, drawn(requests=5, shortest=8), way)
    assert "cosmic ray" in str(round_.error)
    assert round_.measures is None
    time.sleep(0.1)
    assert engine.status().running == 0


def test_a_closed_engine_ends_the_round(build: Build) -> None:
    engine = build()
    round_ = Round(engine, drawn(requests=5, spread_s=1.0), "static").start()
    time.sleep(0.05)
    engine.close()
    assert round_.wait(5)
    assert round_.error is not None


def test_there_are_two_ways(shared: Engine) -> None:
    with pytest.raises(ValueError, match="static, continuous"):
        Round(shared, drawn(), "fast")


def test_no_thread_is_left(build: Build) -> None:
    engine = build()
    played(engine, drawn(), "static")
    time.sleep(0.05)
    assert not [t for t in threading.enumerate() if t.name == "static round"]
