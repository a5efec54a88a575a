"""What is made of a load: the checks, and a table of how long people waited."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .asks import REFUSED
from .crowd import AFTERWARDS, Outcome, Plan
from .memory import growth, second_half
from .users import Heard

NEAR = 2e-3  # how far rounding may move a probability or an entropy
LEAK = 6.0  # MiB a minute that memory may seem to grow: what a line through noise can have
KINDS = ("short", "long", "next_token", "page", "page open", "page reload", "tokenize", "status")


@dataclass(frozen=True)
class Check:
    """One thing that must hold, and what was seen."""

    name: str
    holds: bool
    seen: str


@dataclass(frozen=True)
class Parting:
    """Where one request's tokens in company part from those that it gave alone.

    Attributes:
        step: index of the first that differs.
        tie: what nearly was a tie there, in words; empty where nothing was, so that it is a fault.
    """

    heard: Heard
    step: int
    tie: str


def checks(outcome: Outcome, plan: Plan) -> list[Check]:
    heard = outcome.heard
    problems = [f"{one.who}, {one.kind}: {text}" for one in heard for text in one.problems]
    problems += outcome.lost
    lost = [one for one in heard if one.outcome in ("lost", "")]
    alone = [one for one in outcome.alone.values() if one.outcome != "finished"]
    compared, parted, mixed = companies(outcome)
    ties = [parting for parting in parted if parting.tie]
    faults = [_told(parting) for parting in parted if not parting.tie]
    rush = [one for one in heard if one.kind == "rush"]
    refused = [one for one in heard if one.kind == "refused"]
    after = "never" if outcome.at_rest_s is None else f"after {outcome.at_rest_s:.1f} s"
    made = [
        Check("nothing lost", not lost and not outcome.lost, f"{len(heard)} requests, {len(lost)}"),
        Check("every stream as it should be", not problems, _some(problems)),
        Check(
            "every answer belongs to its request", not mixed, _some(mixed) or f"{compared} texts"
        ),
        Check(
            "the same tokens as alone",
            not faults and not alone,
            _some([*faults, *(f"alone: {one.said or one.problems}" for one in alone)])
            or f"{compared} texts; {len(ties)} part at a near-tie",
        ),
        Check(
            "what is wrong is refused in a sentence",
            len(refused) >= len(REFUSED) and all(one.outcome == "said" for one in refused),
            f"{len(refused)} times",
        ),
        Check("no fault in the log", not outcome.log, _some(outcome.log)),
        Check(
            f"at rest within {AFTERWARDS:.0f} s after all have gone",
            outcome.at_rest_s is not None,
            f"{after}: running {outcome.status['running']}, waiting {outcome.status['waiting']}, "
            f"cache {outcome.status['cache_bytes']} bytes",
        ),
    ]
    if plan.rush:
        told = "; ".join(f"after {one.retries} at once: {one.said}" for one in rush)
        made.append(
            Check("too many at once are told to wait", any(r.outcome == "said" for r in rush), told)
        )
    late = second_half(outcome.samples)
    times = [sample.at for sample in late]
    rest = growth(times, [sample.rest for sample in late])
    whole = growth(times, [sample.rss for sample in late])
    made.append(
        Check(
            "memory flat after warm-up",
            rest < LEAK or plan.seconds < 120,  # in less time a line says nothing
            f"{rest:+.1f} MiB a minute beside caches and traces ({whole:+.1f} with them)",
        )
    )
    return made


def companies(outcome: Outcome) -> tuple[int, list[Parting], list[str]]:
    """How many were compared with the same alone, where they parted, and what was mixed up."""
    compared, parted, mixed = 0, [], []
    for one in outcome.heard:
        alone = outcome.alone.get(one.ask) if one.ask is not None else None
        if alone is None or alone.outcome != "finished":
            continue
        if one.prompt_ids is not None and one.prompt_ids != alone.prompt_ids:
            mixed.append(f"{one.who} got an answer to another prompt than that of {one.ask}")
        if not one.steps:
            continue
        compared += 1
        parting = part(one, alone)
        if parting is not None:
            parted.append(parting)
        elif _whole(one) and len(one.steps) != len(alone.steps):
            mixed.append(f"{one.who} got {len(one.steps)} steps of {len(alone.steps)}")
    return compared, parted, mixed


def part(one: Heard, alone: Heard) -> Parting | None:
    """Where the first one's tokens leave those of the second, if they do."""
    for step, (ours, theirs) in enumerate(zip(one.steps, alone.steps, strict=False)):
        if ours[0] != theirs[0]:
            return Parting(one, step, _tie(ours, theirs))
        if not _close(ours, theirs):
            return Parting(one, step, "")
    if len(one.steps) > len(alone.steps):
        return Parting(one, len(alone.steps), "")
    return None


def _whole(one: Heard) -> bool:
    """Whether all of its text was heard."""
    return one.outcome == "finished" and one.kind != "next_token"


def _close(ours: list, theirs: list) -> bool:
    """Whether only rounding tells these distributions apart, or a token at the edge of a cut."""
    return math.isclose(ours[5], theirs[5], rel_tol=NEAR, abs_tol=NEAR)


def _tie(ours: list, theirs: list) -> str:
    (_, draw, low, high, kept, _, prob), (_, drawn, other_low, other_high, other, _, other_prob) = (
        ours,
        theirs,
    )
    if not _close(ours, theirs) or draw != drawn:
        return ""
    if draw is None:
        return "two favourites" if abs(prob - other_prob) < NEAR else ""
    edges = (low, high, other_low, other_high)
    if any(abs(draw - edge) < NEAR for edge in edges):
        return "a draw at the edge of a token"
    return "a token at the edge of a cut" if 0 < abs(kept - other) <= 2 else ""


def tables(outcome: Outcome, plan: Plan, made: Sequence[Check]) -> Iterator[str]:
    """Lines of Markdown."""
    yield f"{plan.users} users, {plan.pages} pages, {outcome.seconds:.0f} s"
    yield ""
    yield "| who | asked | finished | stopped | vanished | busy | first token p50 | p95 | worst |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    rows = {kind: [one for one in outcome.heard if one.kind == kind] for kind in KINDS}
    for kind, those in _without_the_rush(outcome, rows).items():
        if not those:
            continue
        ends = Counter(one.outcome for one in those)
        first = [one.first_s for one in those if one.first_s is not None]
        first = first or [one.total_s for one in those]
        busy = sum(one.retries for one in those)
        waits = " | ".join(f"{value:.2f} s" for value in _quantiles(first))
        counts = (len(those), ends["finished"], ends["stopped"], ends["vanished"], busy)
        yield f"| {kind} | " + " | ".join(map(str, counts)) + f" | {waits} |"
    yield ""
    stops = [one.stop_s for one in outcome.heard if one.stop_s is not None]
    if stops:
        middle, p95, worst = _quantiles(stops)
        yield f"a stop took {middle:.2f} s, p95 {p95:.2f} s, worst {worst:.2f} s, seen by its user"
    yield from _load(outcome)
    yield ""
    yield "| check | | seen |"
    yield "| --- | --- | --- |"
    for check in made:
        yield f"| {check.name} | {'holds' if check.holds else 'FAILS'} | {check.seen} |"


def _without_the_rush(outcome: Outcome, rows: dict[str, list[Heard]]) -> dict[str, list[Heard]]:
    """The rows without those who were under way in the rush, and a row for these."""
    rush = next((one for one in outcome.heard if one.kind == "rush"), None)
    if rush is None:
        return rows
    over = rush.at + rush.total_s + AFTERWARDS

    def met(one: Heard) -> bool:
        return one.at < over and one.at + one.total_s > rush.at

    quiet = {kind: [one for one in those if not met(one)] for kind, those in rows.items()}
    together = [one for those in rows.values() for one in those if met(one)]
    return {**quiet, "all of these, in the rush": together}


def _load(outcome: Outcome) -> Iterator[str]:
    samples = outcome.samples
    if not samples:
        return
    rates = [sample.tokens_per_s for sample in samples]
    running = [sample.running for sample in samples]
    yield (
        f"tokens a second of all, median {statistics.median(rates):.0f}; running "
        f"{statistics.mean(running):.1f} on average, {max(running)} at most; waiting at most "
        f"{max(sample.waiting for sample in samples)}"
    )
    yield ""
    yield "| memory, MiB | at first | at half time | at the end | most |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    half = second_half(samples)[0]
    for name, value in (
        ("all of the app", lambda s: s.rss),
        ("caches and traces", lambda s: s.accounted),
        ("the rest", lambda s: s.rest),
    ):
        values = [value(sample) for sample in (samples[0], half, samples[-1])]
        cells = [*values, max(map(value, samples))]
        yield f"| {name} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |"


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, p95 and worst."""
    ordered = sorted(values)
    p95 = ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)]
    return statistics.median(ordered), p95, ordered[-1]


def _some(texts: Sequence[str], most: int = 5) -> str:
    """The first few of them, in one cell."""
    more = f" … and {len(texts) - most} more" if len(texts) > most else ""
    return " ⏎ ".join(text.replace("|", "¦").replace("\n", " ") for text in texts[:most]) + more


def _told(parting: Parting) -> str:
    one = parting.heard
    return f"{one.who}, request {one.ask} ({one.kind}), parts at step {parting.step}"
