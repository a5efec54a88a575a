"""A user of the API: a real `gradio_client` in a process of its own, so that it can vanish."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradio_client import Client

from .asks import REFUSED, Ask, busy, unforeseen

VANISHED = 7  # exit code of a user whose connection broke on purpose
LOOK = 0.03  # seconds between two looks at what has come; the client itself looks every 0.05
PATIENCE = 120.0  # seconds without news after which a request counts as lost
SETTLED = 20.0  # seconds in which a stopped request must be over on the client's side
RETRIES = 12
# What the client says of a job that was stopped, the second where it ended at the same moment.
STOPPED = ("Could not find 'data'", "Did not expect 2 tasks to be done")
MOST_AT_ONCE = 170  # requests of a rush; gradio lends the app 200 threads


@dataclass
class Heard:
    """One request and what came back.

    Attributes:
        who: the user.
        kind: `"short"`, `"long"`, `"next_token"`, `"tokenize"`, `"status"`, `"refused"`, `"rush"`.
        ask: key of the `Ask`, where it was one.
        at: seconds since the epoch.
        outcome: `"finished"`, `"stopped"`, `"vanished"`, `"said"` (a sentence), `"lost"`.
        first_s: from the request (the last one, after a busy answer) to the first step.
        stop_s: from pressing stop until it was over.
        retries: how often the engine was busy.
        waited: whether the engine told a place in the queue.
        prompt_ids: what the model got.
        steps: token id, draw, both ends of its span, tokens kept, entropy, final probability each.
        problems: what should not have been.
    """

    who: str
    kind: str
    ask: int | None = None
    at: float = field(default_factory=time.time)
    outcome: str = "lost"
    first_s: float | None = None
    total_s: float = 0.0
    stop_s: float | None = None
    retries: int = 0
    waited: bool = False
    prompt_ids: list[int] | None = None
    steps: list[list[Any]] = field(default_factory=list)
    said: str = ""
    problems: list[str] = field(default_factory=list)


class User:
    """Asks for things until the time is over.

    Args:
        record: file to which what was heard is added, a line each.
        workers: how many requests it may have at once.
    """

    def __init__(self, url: str, who: str, asks: list[Ask], record: Path, workers: int = 4) -> None:
        self.client = Client(
            url,
            verbose=False,
            max_workers=workers,
            analytics_enabled=False,
            httpx_kwargs={"timeout": PATIENCE},  # of itself it gives a busy server five seconds
        )
        self.who, self.asks, self.record = who, asks, record

    def live(self, until: float, thinking_s: float, vanishes: bool, seed: str) -> None:
        draw = random.Random(seed)
        acts: list[tuple[float, Callable[[random.Random], None]]] = [
            (0.54, lambda draw: self.generate(draw.choice(self.asks))),
            (0.18, lambda draw: self.generate(draw.choice(self.asks), draw.randint(0, 9))),
            (0.09, lambda draw: self.next_token(draw.choice(self.asks))),
            (0.05, lambda draw: self.tokenize(draw.choice(self.asks))),
            (0.03, lambda draw: self.status()),
            (0.06, lambda draw: self.refused(*draw.choice(REFUSED))),
        ]
        if vanishes:
            acts.append((0.05, lambda d: self.vanish(d.choice(self.asks), d.randint(0, 6))))
        while time.time() < until:
            time.sleep(min(draw.expovariate(1 / thinking_s), 10 * thinking_s))
            (act,) = draw.choices([act for _, act in acts], [weight for weight, _ in acts])
            act(draw)

    def generate(self, ask: Ask, stop_after: int | None = None) -> Heard:
        """`/generate`; with `stop_after` steps it is stopped, unless it ends before."""
        heard = Heard(self.who, ask.kind, ask.key)
        return self._tell(self._generate(heard, ask.arguments, stop_after))

    def vanish(self, ask: Ask, after: int) -> None:
        """Break all connections after so many steps, with no word to anybody."""
        heard = Heard(self.who, ask.kind, ask.key, outcome="vanished")
        job = self.client.submit(api_name="/generate", **ask.arguments)
        start = time.monotonic()
        while time.monotonic() < start + PATIENCE and not job.done():
            if len(job.outputs()) > after:
                break
            time.sleep(LOOK)
        self._tell(heard)
        os._exit(VANISHED)

    def next_token(self, ask: Ask) -> None:
        heard = Heard(self.who, "next_token", ask.key)
        step = self._answer(heard, "/next_token", ask.one)
        if step is not None:
            heard.steps.append(brief(step))
            heard.first_s = heard.total_s
        self._tell(heard)

    def tokenize(self, ask: Ask) -> None:
        heard = Heard(self.who, "tokenize", ask.key)
        tokens = self._answer(heard, "/tokenize", ask.text)
        if tokens is not None:
            heard.prompt_ids = [token["token_id"] for token in tokens]
        self._tell(heard)

    def status(self) -> None:
        heard = Heard(self.who, "status")
        status = self._answer(heard, "/status", {})
        if status is not None and min(status["running"], status["waiting"]) < 0:
            heard.problems.append(f"status says {status}")
        self._tell(heard)

    def refused(self, endpoint: str, arguments: dict[str, Any], holds: str) -> None:
        """Something wrong must come back as a sentence."""
        heard = Heard(self.who, "refused")
        self._answer(heard, endpoint, arguments, retries=0)
        if heard.outcome != "said" or (holds not in heard.said and busy(heard.said) is None):
            told = f"{str(arguments)[:80]} was answered {heard.outcome}: {heard.said[:200]!r}"
            heard.problems.append(told)
        self._tell(heard)

    def rush(self) -> None:
        """As many requests at once as it takes until the engine is busy; then vanish.

        The others hear meanwhile that it is busy, too, and try again.
        """
        heard = Heard(self.who, "rush")
        arguments = {**self.asks[0].arguments, "max_new_tokens": 400, "stop": None}
        start, jobs, said = time.monotonic(), [], None
        while said is None and time.monotonic() < start + PATIENCE:
            if len(jobs) < MOST_AT_ONCE:
                more = {**arguments, "seed": len(jobs)}
                jobs.append(self.client.submit(api_name="/generate", **more))
            elif all(job.outputs() for job in jobs):
                break
            else:
                time.sleep(LOOK)
            said = next(filter(None, map(_refusal, jobs)), None)
        heard.retries, heard.total_s = len(jobs), time.monotonic() - start
        heard.outcome, heard.said = "finished" if said is None else "said", said or ""
        if said is not None and busy(said) is None:
            heard.problems.append(f"busy is said as {said!r}")
        self._tell(heard)
        os._exit(VANISHED)

    def _generate(self, heard: Heard, arguments: dict[str, Any], stop_after: int | None) -> Heard:
        start = time.monotonic()
        while True:
            heard.first_s, asked = None, time.monotonic()
            job = self.client.submit(api_name="/generate", **arguments)
            events, over = self._listen(heard, job, asked, stop_after)
            if over:
                break
            error = job.exception()
            if error is None:
                heard.outcome = "finished"
                break
            heard.outcome, heard.said = "said", str(error)
            if not self._may_retry(heard, RETRIES):
                if busy(heard.said) is None:
                    heard.problems.append(f"refused: {heard.said[:200]!r}")
                break
        heard.total_s = time.monotonic() - start
        if heard.outcome in ("finished", "stopped"):
            heard.problems += wrong(events, arguments, heard.outcome)
        for event in events:
            if event["event"] == "started":
                heard.prompt_ids = list(event["prompt_ids"])
            elif event["event"] == "step":
                heard.steps.append(brief(event))
        return heard

    def _listen(
        self, heard: Heard, job: Any, asked: float, stop_after: int | None
    ) -> tuple[list[dict], bool]:
        """All events of a job, and whether it was stopped or given up."""
        seen, news = 0, asked
        while not job.done():
            outputs = job.outputs()
            if len(outputs) > seen:
                seen, news = len(outputs), time.monotonic()
                heard.waited |= any(event["event"] == "waiting" for event in outputs)
                steps = sum(event["event"] == "step" for event in outputs)
                if steps and heard.first_s is None:
                    heard.first_s = news - asked
                if stop_after is not None and steps >= stop_after:
                    return self._stop(heard, job), True
            if time.monotonic() > news + PATIENCE:
                heard.problems.append(f"no news for {PATIENCE:.0f} s after {seen} events")
                events, heard.outcome = self._stop(heard, job), "lost"
                return events, True
            time.sleep(LOOK)
        events = list(job.outputs())
        if heard.first_s is None and any(event["event"] == "step" for event in events):
            heard.first_s = time.monotonic() - asked
        return events, False

    def _stop(self, heard: Heard, job: Any) -> list[dict]:
        heard.outcome, start = "stopped", time.monotonic()
        try:
            job.cancel()
            job.result(timeout=max(0.0, start + SETTLED - time.monotonic()))
        except CancelledError:
            pass
        except TimeoutError:
            heard.problems.append(f"not over {SETTLED:.0f} s after it was stopped")
        except Exception as error:
            if not any(words in str(error) for words in STOPPED):
                heard.problems.append(f"stopping it gave {str(error)[:200]!r}")
        heard.stop_s = time.monotonic() - start
        return list(job.outputs())

    def _answer(
        self, heard: Heard, endpoint: str, arguments: dict[str, Any], retries: int = RETRIES
    ) -> Any:
        """What a plain endpoint answers; None where it answers with a sentence."""
        while True:
            start = time.monotonic()
            try:
                job = self.client.submit(api_name=endpoint, **arguments)
                answer = job.result(timeout=PATIENCE)
                heard.outcome, heard.total_s = "finished", time.monotonic() - start
                return answer
            except TimeoutError:
                heard.problems.append(f"{endpoint}: no answer for {PATIENCE:.0f} s")
                return None
            except Exception as error:
                heard.outcome, heard.said = "said", str(error)
                heard.total_s = time.monotonic() - start
                if unforeseen(heard.said):
                    heard.problems.append(f"{endpoint} said {heard.said[:300]!r}")
                    return None
                if not self._may_retry(heard, retries):
                    if retries:
                        heard.problems.append(f"{endpoint} refused: {heard.said[:200]!r}")
                    return None

    def _may_retry(self, heard: Heard, retries: int) -> bool:
        """Wait as long as the engine asks for, where it is only busy."""
        seconds = busy(heard.said)
        if seconds is None:
            return False
        heard.retries += 1
        if heard.retries > retries:
            if retries:
                heard.problems.append(f"busy {heard.retries} times in a row")
            return False
        time.sleep(min(seconds, 5.0))
        return True

    def _tell(self, heard: Heard) -> Heard:
        with self.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(heard)) + "\n")
        return heard


def ready() -> None:
    """Nothing: who has come this far has everything loaded."""


def live(
    url: str,
    who: str,
    asks: list[Ask],
    record: Path,
    until: float,
    thinking_s: float,
    vanishes: bool,
    seed: str,
) -> None:
    """One user's process."""
    User(url, who, asks, record).live(until, thinking_s, vanishes, seed)


def rush(url: str, who: str, asks: list[Ask], record: Path, at: float) -> None:
    """The process of one who asks for too much at once."""
    user = User(url, who, asks, record, MOST_AT_ONCE)
    time.sleep(max(0.0, at - time.time()))
    user.rush()


def mistakes(url: str, who: str, asks: list[Ask], record: Path) -> None:
    """The process of one who gets everything wrong that can be, once each."""
    user = User(url, who, asks, record)
    for mistake in REFUSED:
        user.refused(*mistake)


def once(url: str, who: str, ask: Ask, record: Path) -> None:
    """The process of one who asks for one thing and goes."""
    User(url, who, [ask], record).generate(ask)


def brief(step: dict[str, Any]) -> list[Any]:
    """What two companies of one step are compared by, see `Heard.steps`."""
    low, high = step["span"] or (None, None)
    numbers = (step["draw"], low, high, step["kept"], step["entropy"], step["final_prob"])
    return [step["token_id"], *numbers]


def wrong(events: list[dict[str, Any]], arguments: dict[str, Any], outcome: str) -> list[str]:
    """What is wrong with the events of one request."""
    kinds = [event["event"] for event in events]
    said = []
    if kinds.count("started") > 1 or kinds.count("finished") > 1:
        said.append("it started or ended more than once")
    if "finished" in kinds[:-1]:
        said.append("something came after its end")
    if outcome == "finished" and (not kinds or kinds[-1] != "finished"):
        said.append(f"it ended without saying so, after {kinds[-1:]}")
    if kinds and kinds[0] not in ("started", "waiting"):
        said.append(f"it began with {kinds[0]}")
    steps = [event for event in events if event["event"] == "step"]
    if [step["index"] for step in steps] != list(range(len(steps))):
        said.append("its steps are not one after the other")
    if len(steps) > arguments["max_new_tokens"]:
        said.append("it wrote more than it should")
    for event in events:
        if event["event"] == "started" and arguments["strategy"] == "sampling":
            if event["seed"] != arguments["seed"]:
                said.append(f"seed {arguments['seed']} became {event['seed']}")
        elif event["event"] == "finished" and event["reason"] not in ("eos", "length", "stop"):
            said.append(f"it ended with {event['reason']}")
        elif event["event"] == "step":
            asked = arguments["num_candidates"]
            if not min(asked, 20) <= len(event["candidates"]) <= 2 * asked + 2:
                said.append(f"{len(event['candidates'])} candidates where {asked} were asked for")
    return said


def _refusal(job: Any) -> str | None:
    """What a job that is over was told, where it was refused."""
    if not job.done() or job.cancelled():
        return None
    error = job.exception()
    return None if error is None else str(error)
