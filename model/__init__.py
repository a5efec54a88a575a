"""The decoding engine: a language model that reports every decision as it takes it."""

from .engine import Engine
from .errors import Busy, FieldError, Gone, ModelUnavailable
from .events import Candidate, Effect, Event, Finished, Started, Step, Waiting
from .request import Request
from .run import Result, Run
from .status import Status
from .strategies import Greedy, Sampling

__all__ = [
    "Busy",
    "Candidate",
    "Effect",
    "Engine",
    "Event",
    "FieldError",
    "Finished",
    "Gone",
    "Greedy",
    "ModelUnavailable",
    "Request",
    "Result",
    "Run",
    "Sampling",
    "Started",
    "Status",
    "Step",
    "Waiting",
]
