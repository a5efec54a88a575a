"""The engine: one model in memory, one loop, any number of runs."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from . import device as devices
from . import ranges
from .backbone import TransformersBackbone
from .draw import new_seed
from .errors import FieldError
from .events import Started, Step
from .feeder import Feeder
from .kv_cache import capacity
from .loop import Loop
from .prompt import end_ids, prompt_ids, start_id
from .request import MOST_NEW_TOKENS, Request, checked_strategy
from .run import Result, Run
from .runs import Runs
from .scheduler import Scheduler
from .scoring import scored
from .status import Status
from .strategies import Greedy, Strategy
from .threads import short_lived
from .timeline import Turn
from .token_text import TokenText
from .trace import Trace

MIB = 2**20
SHORTEST = 16  # tokens of one run for which there must be room at least
MOST_AT_ONCE = 32  # of generate_many
MOST_RUNS = 1024  # that can still be asked about,
REPORT_BYTES = 64 * MIB  # and what their reports may take


class Engine:
    """Decodes with one model for everyone.

    Args:
        model: an already built transformers causal LM; `Engine.load` gets one by name.
        tokenizer: its tokenizer.
        name: what `Started.model` calls it.
        device: `"auto"` (CUDA, else MPS, else CPU), or a torch device name.
        precision: `"auto"` (bf16 on CUDA, else fp32), `"fp32"` or `"bf16"`.
        cache_bytes: bound of all KV caches; None picks a part of the memory.
        trace_bytes: bound of the recorded logits.
        max_waiting: longest queue; beyond it `stream` raises `Busy`.
        threaded: False leaves the loop to the caller: `step()`, or iterating a run, drives it.

    Raises:
        FieldError: a wrong device, precision or limit.
        ModelUnavailable: not a decoder-only model with a KV cache.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        cache_bytes: int | None = None,
        trace_bytes: int = 256 * MIB,
        max_waiting: int = 64,
        threaded: bool = True,
    ) -> None:
        self.device = devices.device(device)
        self.precision = devices.precision(precision, self.device)
        original = model
        self._original: Callable[[], Any] = lambda: original
        dtype = devices.DTYPES[self.precision]
        if model.dtype != dtype or not _there(model.device, self.device):
            model = copy.deepcopy(model).to(self.device, dtype)
        self.backbone = TransformersBackbone(model)
        self.tokenizer, self.threaded = tokenizer, threaded
        self.name = name or getattr(model.config, "name_or_path", "") or model.config.model_type
        self.info: Any = None  # what the catalogue knows, where the model came from there
        self.token_text = TokenText(tokenizer, self.backbone.vocab_size)
        self.end_ids, self._start_id = end_ids(model, tokenizer), start_id(model, tokenizer)
        per_token = self.backbone.layout.bytes_per_token
        budget = devices.cache_budget(cache_bytes, capacity(SHORTEST) * per_token, self.device)
        waiting = ranges.whole("max_waiting", max_waiting, 1, 1_000_000)
        scheduler = Scheduler(budget, per_token, waiting, self.backbone.pass_tokens)
        self.trace = Trace(ranges.whole("trace_bytes", trace_bytes, 0, 2**50))
        self.runs = Runs(MOST_RUNS, REPORT_BYTES)
        self.loop = Loop(
            self.backbone,
            scheduler,
            self.token_text,
            self.end_ids,
            self.trace,
            threaded,
        )
        # Also at the interpreter's end: a thread inside a forward pass then would abort it.
        self._close = weakref.finalize(self, self.loop.close)
        here = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (me := here()) and me._forked())

    @classmethod
    def load(
        cls, name: str | None = None, *, progress: Callable[..., None] | None = None, **limits: Any
    ) -> Engine:
        """The default model, or one by catalogue id, hub name or folder.

        Args:
            name: `"gpt2"`, `"owner/name"`, a path; None is the default model.
            progress: told of downloads and conversions, as `progress(stage, fraction)`.
            limits: as for the constructor.

        Raises:
            ModelUnavailable: with one sentence that says why.
        """
        from . import loading
        from .catalogue import catalogue

        # A wrong device is said at once, not after the weights have been read.
        on = devices.device(limits.get("device", "auto"))
        devices.precision(limits.get("precision", "auto"), on)
        source = name or catalogue().default_id

        def made() -> Engine:
            loaded = loading.load(source, progress=progress)
            engine = cls(loaded.model, loaded.tokenizer, name=loaded.info.id, **limits)
            engine.info = loaded.info
            return engine

        engine = short_lived(made)
        # The engine has weights of its own making; these would only lie in memory beside them.
        engine._original = lambda: loading.load(source).model
        return engine

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # requests

    def stream(self, request: Request) -> Run:
        """Start a run, which `run` finds by its handle.

        Raises:
            FieldError: a value that this model can't take, before anything runs.
            Busy: the queue is full.
        """
        run = self._stream(request)
        self.runs.add(run)
        return run

    def tokenize(self, request: Request) -> tuple[int, ...]:
        """The exact tokens that the model gets for this request.

        Raises:
            FieldError: a value that this model can't take.
        """
        ids = prompt_ids(self.tokenizer, request, self._start_id)
        self._check(request, ids)
        return ids

    def room(self, request: Request) -> int:
        """The most tokens that a text can come to have under this request's settings."""
        rows = request.strategy.rows
        return min(self.backbone.max_length, self.loop.scheduler.longest(rows))

    def branch(
        self,
        run: Run,
        at: int,
        token_id: int | None = None,
        strategy: Strategy | None = None,
        more: int | None = None,
    ) -> Run:
        """A run that takes over the first `at` steps of another; see `Run.branch`."""
        if token_id is not None:
            (token_id,) = self._check_ids("token_id", [token_id])
        strategy = run.request.strategy if strategy is None else checked_strategy(strategy)
        seed = run.seed if strategy.seed is None else strategy.seed
        limit = run.request.max_new_tokens
        if more is not None:
            limit = at + ranges.whole("max_new_tokens", more, 1, MOST_NEW_TOKENS - at)
        elif limit <= at:
            limit += at
        request = replace(run.request, strategy=strategy, max_new_tokens=limit)
        self._check(request, run.prompt_ids, at)
        new = self._new(request, run.prompt_ids, seed, run.handle)
        new.steps, new.moments = run.steps[:at], run.moments[:at]
        self._start(new, forced=token_id)
        self.runs.add(new)
        return new

    def generate(self, request: Request) -> Result:
        """`stream`, drained. Only the result is left of the run."""
        return self._stream(request).result()

    def generate_many(self, requests: Iterable[Request]) -> list[Result]:
        """All of them, concurrently, results in order; never `Busy`, however many.

        Raises:
            FieldError: a value that this model can't take.
            RuntimeError: a run ended in an error. Either way the others are cancelled.
        """
        width = max(1, min(MOST_AT_ONCE, self.loop.scheduler.max_waiting))
        turn = None if self.threaded else self.step
        return Feeder(self._stream, turn, width).results(requests)

    def run(self, handle: str) -> Run:
        """The run of this handle.

        Raises:
            Gone: it never was, or is no longer kept.
        """
        return self.runs.get(handle)

    def score(self, text: str, num_candidates: int = 20) -> list[Step]:
        """How the model saw a given text: one `Step` per token, without decoding.

        The first token is weighed after the start token, where the model has one that the
        tokenizer does not already put first; else it has no distribution and no `Step`.
        """
        request = Request(prompt=text, num_candidates=num_candidates, strategy=Greedy())
        ids = list(prompt_ids(self.tokenizer, request, self._start_id))
        if self._start_id is not None and ids[0] != self._start_id:
            ids.insert(0, self._start_id)
        self._check(request, ids)
        if len(ids) == 1:  # nothing to run
            return []
        return self.loop.ask(scored(self.backbone, self.token_text, ids, request), len(ids))

    # state

    def status(self) -> Status:
        """What the engine is doing now; the rate is that of the last five seconds."""
        return Status.of(self)

    def timeline(self) -> list[Turn]:
        """The latest turns of the loop: who ran, prefill or decode, for how long."""
        return self.loop.timeline.turns()

    def reference_model(self) -> Any:
        """The same weights as a plain transformers model in fp32; read anew where it was loaded."""
        original = self._original()
        if original.dtype == torch.float32:
            return original
        return copy.deepcopy(original).float()

    def step(self) -> bool:
        """One turn of the loop, for programs that bring their own thread; False if idle."""
        return self.loop.turn()

    def wake(self) -> None:
        self.loop.wake()

    def close(self) -> None:
        """End all runs and the loop."""
        self._close()

    def _forked(self) -> None:
        """A worker process that was forked decodes with the engine, too, beginning anew."""
        for part in (self.runs, self.trace, self.loop):
            part.forked()

    # what runs ask for

    def logits(self, run: Run, index: int) -> torch.Tensor:
        """A step's logits; one forward pass over its prefix where they were given up.

        *Shape:* (vocab,)
        """
        moment = run.moments[index]
        held = self.trace.logits(moment)
        if held is None:
            held = self.loop.ask(self.loop.logits_before(run, index), len(run.prompt_ids) + index)
            self.trace.keep(moment, held)
        return held

    def _stream(self, request: Request) -> Run:
        ids, seed = self.tokenize(request), request.strategy.seed
        return self._start(self._new(request, ids, new_seed() if seed is None else seed))

    def _start(self, run: Run, forced: int | None = None) -> Run:
        request, inherited = run.request, len(run.steps)
        run.tell(
            Started(
                handle=run.handle,
                prompt_ids=run.prompt_ids,
                prompt_labels=tuple(self.token_text.label(i) for i in run.prompt_ids),
                prompt_texts=tuple(self.token_text.pieces(run.prompt_ids)),
                inherited=inherited,
                parent=run.parent,
                model=self.name,
                device=str(self.device),
                precision=self.precision,
                seed=request.strategy.seed if request.strategy.draws else None,
                max_new_tokens=request.max_new_tokens,
                vocab_size=self.backbone.vocab_size,
            )
        )
        tokens = len(run.prompt_ids) + request.max_new_tokens
        self.loop.add(run, tokens, forced, self._seconds_until_free)
        return run

    def _new(
        self, request: Request, ids: tuple[int, ...], seed: int, parent: str | None = None
    ) -> Run:
        """A run of the request, with what it left open settled: its seed, the limit that fits."""
        strategy = request.strategy
        fixed = replace(
            request,
            strategy=strategy.with_seed(seed) if strategy.draws else strategy,
            max_new_tokens=min(request.max_new_tokens, self.room(request) - len(ids)),
            num_candidates=min(request.num_candidates, self.backbone.vocab_size),
        )
        return Run(self, fixed, ids, seed, parent)

    def _check(self, request: Request, ids: Sequence[int], inherited: int = 0) -> None:
        if request.token_ids is not None:
            self._check_ids("token_ids", ids)
        room = self.room(request) - 1
        if len(ids) + inherited > room:
            allowed = f"at most {room} tokens, and it has {len(ids) + inherited}"
            raise FieldError(
                "prompt",
                request.prompt if request.prompt is not None else list(ids[:5]),
                allowed,
                "no_room",
                tokens=len(ids) + inherited,
                room=room,
            )

    def _check_ids(self, field: str, ids: Sequence[int]) -> list[int]:
        last = self.backbone.vocab_size - 1
        return [ranges.whole(field, token_id, 0, last) for token_id in ids]

    def _seconds_until_free(self) -> float:
        """An estimate of when the first of the running sequences will be over."""
        runs = [entry.run for entry in list(self.loop.scheduler.running)]
        left = [run.request.max_new_tokens - len(run.steps) for run in runs]
        return min(left, default=0) * self.loop.timeline.pace() or 5.0


def _there(device: torch.device, wanted: torch.device) -> bool:
    """Whether it is the wanted one: `cuda` is any GPU, `cuda:1` that one."""
    return device.type == wanted.type and wanted.index in (None, device.index)
