"""The scheduler, whoever comes and goes: random arrivals, lengths, pauses, ends and faults.

One machine plays a crowd of people on an engine without a thread, turn by turn. After every turn it
looks at memory and at who was served; at the end, at what everybody got.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis.strategies as st
import pytest
import tiny_models
from deciders import Faulty, Guessing, TwoRows
from engine_cases import shared
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tiny_models import VOCAB

from model import Busy, Engine, Finished, Greedy, Request, Run, Sampling, Started, Step, Waiting
from model.kv_cache import CHUNK, capacity

PER_TOKEN = 256  # bytes of the tiny model's cache
MOST_TOKENS = 4 * CHUNK + 40  # of a prompt: several turns' worth
PATIENCE = 3000  # turns in which everything must have come to its end
MOST_FED = 5  # newest tokens of one run in a pass: one, or two rows, or one and four guesses
KINDS = ("greedy", "sampling", "uncached", "rows", "guessing", "no decider", "fault")


@dataclass(frozen=True)
class Ask:
    """One request; what it gives alone depends on this and nothing else."""

    kind: str
    length: int
    number: int  # of the prompt
    more: int

    def request(self) -> Request:
        return Request(
            token_ids=prompt(self.length, self.number),
            strategy=self.strategy(),
            max_new_tokens=self.more,
            num_candidates=1,
            use_cache=self.kind != "uncached",
        )

    def strategy(self) -> Any:
        match self.kind:
            case "greedy" | "uncached":
                return Greedy()
            case "sampling":
                return Sampling(temperature=1.5, seed=self.number)
            case "rows":
                return TwoRows()
            case "guessing":
                ask = Ask("greedy", self.length, self.number, self.more)
                return Guessing(alone(ask), self.length)
            case "no decider":
                return Faulty("decider")
        return Faulty("decide")

    @property
    def written(self) -> int:
        """How many steps it comes to, with nobody in its way."""
        return {"no decider": 0, "fault": min(2, self.more)}.get(self.kind, self.more)

    @property
    def reason(self) -> str:
        return "error" if self.written < self.more else "length"


def prompt(length: int, number: int) -> tuple[int, ...]:
    """Tokens of few kinds of beginnings, so that prompts share some with each other."""
    return tuple((7 * i * (number % 3 + 1) + number // 3 * (i > 70)) % VOCAB for i in range(length))


@cache
def alone(ask: Ask) -> tuple[int, ...]:
    """The tokens that it gives on an engine where nobody else is or ever was."""
    if ask.kind in ("no decider", "fault"):
        ask = Ask("greedy", ask.length, ask.number, ask.more)
    engine = shared()
    engine.loop.kept.shrink(0)
    return engine.generate(ask.request()).token_ids


@dataclass(eq=False)
class Person:
    """Somebody who asked for something.

    Attributes:
        began: whether the run has been in the running set.
        missed: turns in a row in which others were served and this run could have been, too.
        cancelled: how many steps it had taken when it was, if it was.
        struck: the same for a fault of the model that hit nobody else.
        parked: whether it ever had to make room.
    """

    ask: Ask
    run: Run
    began: bool = False
    missed: int = 0
    cancelled: int | None = None
    struck: int | None = None
    parked: bool = False

    @property
    def light(self) -> bool:
        """Whether all that it feeds are its newest tokens: nothing may hold it up."""
        return bool(self.run.steps) and self.ask.kind != "uncached" and not self.parked

    @property
    def due(self) -> bool:
        now = time.perf_counter()
        return self.run.finished is None and self.run.due(now) == 0 and not self.run.cancelled


def requests(length: st.SearchStrategy[int]) -> st.SearchStrategy[Ask]:
    kinds, numbers, more = st.sampled_from(KINDS), st.integers(0, 8), st.integers(1, 12)
    return st.builds(Ask, kind=kinds, length=length, number=numbers, more=more)


AT_CHUNKS = st.builds(lambda n, less: n * CHUNK - less, st.integers(1, 4), st.integers(0, 12))
ASKS = requests(st.one_of(st.integers(1, 40), st.integers(1, MOST_TOKENS), AT_CHUNKS))
LONG = requests(st.integers(3 * CHUNK, MOST_TOKENS))


class Crowd(RuleBasedStateMachine):
    """People come and go."""

    @initialize(rooms=st.integers(1, 8), tokens=st.integers(1, 5), queue=st.integers(1, 10))
    def open(self, rooms: int, tokens: int, queue: int) -> None:
        """An engine with room for some requests at once, and a short queue."""
        self.limit = rooms * capacity(CHUNK * tokens) * PER_TOKEN
        self.queue = queue
        self.engine: Engine = tiny_models.engine(
            threaded=False, cache_bytes=self.limit, max_waiting=queue, trace_bytes=0
        )
        self.people: list[Person] = []
        self.most, self.turning = 0, False  # bytes in the middle of a turn; questions may take more
        self.fault: Exception | None = None  # of the next pass
        forward = self.engine.backbone.forward

        def watched(feeds: Any, *rest: Any) -> Any:
            if self.turning and self.fault is not None:
                self._strike({id(feed.slot) for feed in feeds})
            outputs = forward(feeds, *rest)
            self.most = max(self.most, self._bytes() if self.turning else 0)
            return outputs

        self.engine.backbone.forward = watched

    # what people do

    @rule(asks=st.lists(ASKS, min_size=1, max_size=4))
    def come_with_any_prompts(self, asks: list[Ask]) -> None:
        self.come(asks)

    def come(self, asks: list[Ask]) -> None:
        for ask in asks:
            request = ask.request()
            if ask.length + ask.more > self.engine.room(request):
                continue  # it would be cut short, or refused: both are for other tests
            try:
                run = self.engine.stream(request)
            except Busy:
                assert self.engine.status().waiting >= self.queue
                return
            self.people.append(Person(ask, run))

    @rule(asks=st.lists(LONG, min_size=3, max_size=6))
    def come_with_long_prompts(self, asks: list[Ask]) -> None:
        self.come(asks)

    @precondition(lambda self: self.people)
    @rule(number=st.integers(0, 30))
    def cancel(self, number: int) -> None:
        for person in self.people[number : number + 1]:
            if person.run.finished is None and person.cancelled is None:
                person.cancelled = len(person.run.steps)
            person.run.cancel()

    @precondition(lambda self: self.people)
    @rule(number=st.integers(0, 30), after=st.integers(0, 2))
    def pause(self, number: int, after: int) -> None:
        self._one(number).run.pause(after)

    @precondition(lambda self: self.people)
    @rule(number=st.integers(0, 30))
    def resume(self, number: int) -> None:
        self._one(number).run.resume()

    @precondition(lambda self: self.people)
    @rule(number=st.integers(0, 30))
    def look(self, number: int) -> None:
        """A question to the model in between: the logits of every step are given up at once."""
        run = self._one(number).run
        if run.steps:
            assert run.reweigh(0).token_id == run.steps[0].token_id

    @rule(kind=st.sampled_from((ZeroDivisionError, MemoryError)))
    def break_the_next_pass(self, kind: type[Exception]) -> None:
        self.fault = kind("meant")

    def _strike(self, slots: set[int]) -> None:
        """The pass over these slots fails: it ends a run that is alone in it, else nobody's."""
        fault, self.fault = self.fault, None
        hit = []
        for entry in self.engine.loop.scheduler.running:
            (person,) = (p for p in self.people if p.run is entry.run)
            person.began = True
            if any(id(row.slot) in slots for row in entry.decoding.rows):
                hit.append(person)
        if len(hit) == 1:
            hit[0].struck = len(hit[0].run.steps)
        raise fault

    def _one(self, number: int) -> Person:
        """Somebody, rather of the latest."""
        return self.people[-1 - number % len(self.people)]

    @rule(times=st.integers(1, 10))
    def turn(self, times: int) -> None:
        for _ in range(times):
            self._turn()

    # what must hold

    def _turn(self) -> bool:
        """One turn, and who was served in it."""
        running = [entry.run for entry in self.engine.loop.scheduler.running]
        light = {p: p.light for p in self.people if p.run in running and p.due}
        held = {p: len(p.run.steps) for p in self.people if not p.due}
        self.turning = True
        busy = self.engine.step()
        self.turning = False
        assert all(p.run.finished for p in self.people if p.cancelled is not None)
        assert held == {p: len(p.run.steps) for p in held}, "a paused run went on"
        struck = [p for p in self.people if p.struck is not None and not p.run.finished]
        for person in struck:  # it was only put back, until there is memory
            person.struck = None
        turns = self.engine.timeline()
        if turns:  # several where a pass failed and everyone went on alone
            self._fair({handle for turn in turns for handle in turn.handles}, light)
        for turn in turns:
            self._bounded(turn, [p for p, is_light in light.items() if is_light])
        self.engine.loop.timeline.clear()
        for person in self.people:
            if person not in light:
                person.missed = 0
        self._ordered()
        return busy

    def _fair(self, served: set[str], light: dict[Person, bool]) -> None:
        """Nobody was passed over who only had newest tokens, nor longer than others take turns."""
        others = max(0, len(light) - sum(light.values()) - 1)
        for person, is_light in light.items():
            person.missed = 0 if person.run.handle in served else person.missed + 1
            assert not (is_light and person.missed), "a decode step was held up"
            assert person.missed <= others, "somebody is passed over again and again"

    def _bounded(self, turn: Any, light: list[Person]) -> None:
        """Prompts take no more of a turn than they may while others wait for it."""
        newest = MOST_FED * sum(p.run.handle in turn.handles for p in light)
        those = (p for p in self.people if p.run.handle in turn.handles)
        again = CHUNK * sum(p.ask.kind == "uncached" for p in those)
        most = self.engine.backbone.pass_tokens * (1 if light else 2) + CHUNK
        assert turn.tokens <= newest + again + most, "prompts took more than they may"

    def _ordered(self) -> None:
        """First come, first served into the running set."""
        scheduler = self.engine.loop.scheduler
        running = [entry.run for entry in scheduler.running]
        parked = [entry.run for entry in scheduler.parked]
        queue = [entry.run for entry in scheduler.waiting]
        for person in self.people:
            person.parked |= person.run in parked or (person.began and person.run in queue)
            person.began |= person.run in running or person.run in parked or bool(person.run.steps)
        waiting = self._waiting()
        late = self.people[self.people.index(waiting[0]) :] if waiting else []
        assert not any(p.began for p in late), "somebody was served before an earlier one"

    def _waiting(self) -> list[Person]:
        """Who has never been served."""
        return [p for p in self.people if not p.began and p.run.finished is None]

    @invariant()
    def queue_is_short(self) -> None:
        if hasattr(self, "engine"):
            assert len(self._waiting()) <= self.queue

    @invariant()
    def memory_is_bounded(self) -> None:
        if hasattr(self, "engine"):
            assert self._bytes() <= self.limit
            assert self.most <= self.limit, "in the middle of a turn"

    def _bytes(self) -> int:
        status = self.engine.status()
        return status.cache_bytes + status.kept_bytes

    @invariant()
    def no_place_is_shared(self) -> None:
        if not hasattr(self, "engine"):
            return
        decodings = [entry.decoding for entry in self.engine.loop.scheduler.running]
        slots = [row.slot for decoding in decodings if decoding for row in decoding.rows]
        slots = [slot for slot in slots if slot is not None]
        assert len({(id(slot.bank), slot.row) for slot in slots}) == len(slots)
        assert all(slot.bank.slots[slot.row] is slot for slot in slots)

    def teardown(self) -> None:
        """Everything comes to its end, exactly once, with what it gives alone."""
        if not hasattr(self, "engine"):
            return
        for person in self.people:
            person.run.resume()
        for _ in range(PATIENCE):
            if self._all_over():
                break
            assert self._turn() or self._all_over(), "somebody is forgotten"
            self.memory_is_bounded()
            self.no_place_is_shared()
        for person in self.people:
            self._ended(person)
        self.engine.step()
        status = self.engine.status()
        assert (status.running, status.waiting, status.cache_bytes) == (0, 0, 0)
        assert self.engine.loop.scheduler.reserved == 0
        self.engine.close()

    def _all_over(self) -> bool:
        return all(person.run.finished for person in self.people)

    def _ended(self, person: Person) -> None:
        ask, run = person.ask, person.run
        events = run.wait(0, timeout=0)
        assert isinstance(events[0], Started)
        assert [event for event in events if isinstance(event, Finished)] == [events[-1]]
        places = [event.place for event in events if isinstance(event, Waiting)]
        if not any(other.parked for other in self.people):  # who comes back goes before all others
            assert places == sorted(places, reverse=True), "it moved back in the queue"
        steps = [event for event in events if isinstance(event, Step)]
        assert [step.index for step in steps] == list(range(len(steps)))
        tokens = tuple(step.token_id for step in steps)
        if person.cancelled is not None:
            assert (run.finished.reason, len(tokens)) == ("cancelled", person.cancelled)
        elif person.struck is not None and run.finished.message.endswith("meant"):
            assert (run.finished.reason, len(tokens)) == ("error", person.struck)
        else:
            assert (run.finished.reason, len(tokens)) == (ask.reason, ask.written), run.finished
        assert tokens == alone(ask)[: len(tokens)]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Faults are meant here."""
    caplog.set_level(logging.CRITICAL + 1)


def test_a_crowd_is_served_in_order_within_memory_and_everybody_gets_their_own() -> None:
    run_state_machine_as_test(
        Crowd,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
