"""The crowd: starts everybody, replaces who vanished, and waits until all have gone."""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gradio_client import Client
from running_app import RunningApp

from . import pages, users
from .asks import Ask, asks
from .memory import Memory, Sample
from .users import VANISHED, Heard, User

AFTERWARDS = 10.0  # seconds in which the app must be at rest once all have gone
RUSH = 0.25  # of the time, when the rush comes: in the warm-up, for the memory's sake
MEMORY = 512  # MiB for caches: full before the warm-up is over, so that what grows on is a leak
STAYING = 240.0  # seconds that somebody may need to end what is under way when the time is over
COMPLAINTS = re.compile(r"Traceback|^\S*(Error|Exception)\b|\b(ERROR|CRITICAL)\b", re.MULTILINE)


@dataclass(frozen=True)
class Plan:
    """How much of everything.

    Attributes:
        thinking_s: mean pause of a user between two requests.
        asks: how many different requests there are.
        long_words: of the longest prompt.
        tokens: that the longest text has.
        rush: whether somebody asks for more at once than the app takes.
    """

    seconds: float = 300.0
    users: int = 30
    pages: int = 3
    thinking_s: float = 1.0
    asks: int = 42
    long_words: int = 700
    tokens: int = 48
    rush: bool = True


@dataclass
class Outcome:
    """Everything that is left of a load.

    Attributes:
        heard: of all users and visitors.
        alone: what each request gave with nobody else there, by its key.
        samples: of the memory.
        at_rest_s: seconds until nothing ran or waited after all had gone; None: never.
        status: the app's, then.
        log: lines of the app's log that look like a fault.
        lost: whose process ended in a way that it should not have.
        seconds: how long all of it took.
    """

    heard: list[Heard] = field(default_factory=list)
    alone: dict[int, Heard] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    at_rest_s: float | None = None
    status: dict = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Crowd:
    """Everybody who uses an app for a while.

    Args:
        folder: for what they write down.
    """

    def __init__(self, app: RunningApp, plan: Plan, folder: Path) -> None:
        self.app, self.plan, self.folder = app, plan, folder
        self.asks = asks(plan.asks, plan.long_words, plan.tokens)
        # Forked from a server that has the client loaded: a user more costs next to nothing, and
        # nobody inherits threads or sockets.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["load.users", "load.pages"])
        self._process(users.ready).join()

    def use(self) -> Outcome:
        """Load the app; afterwards ask for each thing once more, alone."""
        outcome, start = Outcome(), time.monotonic()
        memory = Memory(self.app.url, self.app.process.pid)
        try:
            outcome.lost = self._live(time.time() + self.plan.seconds)
        finally:
            outcome.samples = memory.stop()
            with (self.folder / "memory.txt").open("w", encoding="utf-8") as file:
                file.writelines(f"{sample}\n" for sample in outcome.samples)
        outcome.seconds = time.monotonic() - start
        outcome.at_rest_s, outcome.status = self._rest()
        outcome.heard = list(heard(self.folder))
        outcome.alone = self._alone({one.ask for one in outcome.heard if one.ask is not None})
        outcome.log = complaints(self.app.log)
        return outcome

    def _live(self, until: float) -> list[str]:
        """Until the time is over and everybody is gone; says who got lost."""
        plan, lost = self.plan, []
        lives = dict.fromkeys(range(plan.users), 0)
        there = {n: self._user(n, 0, until) for n in lives}
        wrong = (self.app.url, "mistaken", self.asks, self.folder / "mistaken.jsonl")
        others, rush = [self._process(users.mistakes, *wrong)], None
        if plan.pages:
            page = (self.app.url, plan.pages, self.folder, until, plan.thinking_s)
            others.append(self._process(pages.live, *page))
        if plan.rush:
            record = self.folder / "rush.jsonl"
            at = until - (1 - RUSH) * plan.seconds
            rush = self._process(users.rush, self.app.url, "rush", self.asks, record, at)
        while (now := time.time()) < until + STAYING:
            for number, process in list(there.items()):
                if process.exitcode is None:
                    continue
                del there[number]
                if process.exitcode == VANISHED and now < until:
                    lives[number] += 1
                    there[number] = self._user(number, lives[number], until)
                elif process.exitcode not in (0, VANISHED):
                    lost.append(f"user {number} ended with {process.exitcode}")
            if rush is not None and rush.exitcode is not None:
                if rush.exitcode == VANISHED:  # and comes back
                    after = (self.app.url, "rush, again", self.asks[0], record)
                    rush = self._process(users.once, *after)
                others.append(rush)
                rush = None
            if not there and not rush and all(one.exitcode is not None for one in others):
                break
            time.sleep(0.2)
        if rush is not None:
            others.append(rush)
        for process in (*there.values(), *others):
            if process.exitcode is None:
                lost.append(f"{process.name} never came to its end")
                process.kill()
            process.join()
        lost += [f"{one.name} ended with {one.exitcode}" for one in others if one.exitcode > 0]
        return lost

    def _user(self, number: int, life: int, until: float):
        who, record = f"user {number}", self.folder / f"user-{number}.jsonl"
        vanishes, seed = number % 2 == 0, f"{number}.{life}"
        rest = (until, self.plan.thinking_s, vanishes, seed)
        return self._process(users.live, self.app.url, who, self.asks, record, *rest)

    def _process(self, target, *arguments):
        process = self._context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    def _rest(self) -> tuple[float | None, dict]:
        client, start = self.app.client(), time.monotonic()
        while True:
            status = client.predict(api_name="/status")
            after = time.monotonic() - start
            if status["running"] == status["waiting"] == status["cache_bytes"] == 0:
                return after, status
            if after > AFTERWARDS:
                return None, status
            time.sleep(0.1)

    def _alone(self, keys: set[int]) -> dict[int, Heard]:
        user = User(self.app.url, "alone", self.asks, self.folder / "alone.txt")
        asked: list[Ask] = [ask for ask in self.asks if ask.key in keys]
        return {ask.key: user.generate(ask) for ask in asked}


def heard(folder: Path) -> Iterator[Heard]:
    """What all of them wrote down."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield Heard(**json.loads(line))


def complaints(log: Path) -> list[str]:
    """Lines of a log that look like a fault."""
    return [
        line for line in log.read_text(errors="replace").splitlines() if COMPLAINTS.search(line)
    ]


@contextmanager
def running(folder: Path, model: str | None) -> Iterator[RunningApp]:
    """The real app; `"tiny"` is a random model of two layers, written to the folder."""
    flags = ["--precision", "fp32", "--memory", str(MEMORY)]
    if model == "tiny":
        model = str(_tiny(folder / "tiny-llama"))
    if model is not None:
        flags += ["--model", model]
    app = RunningApp(folder / "app.log", *flags)
    try:
        Client(app.url, verbose=False, analytics_enabled=False).predict("A", api_name="/next_token")
        yield app
    finally:
        app.stop()
        if sys.exc_info()[0] is not None:
            print(app.log.read_text(errors="replace")[-3000:], file=sys.stderr)


def _tiny(folder: Path) -> Path:
    import tiny_models

    tiny_models.model().save_pretrained(folder)
    tiny_models.tokenizer().save_pretrained(folder)
    return folder
