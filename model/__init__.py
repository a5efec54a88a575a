"""The decoding engine: a language model that reports every decision as it takes it."""

from .batching import Measures, Passage, Round
from .engine import Engine
from .errors import Busy, FieldError, Gone, ModelUnavailable
from .events import Candidate, Effect, Event, Finished, Started, Step, Waiting
from .request import Request
from .run import Result, Run
from .status import Status
from .strategies import Greedy, Sampling
from .text_measures import TextMeasures
from .workload import Arrival, Workload

__all__ = [
    "Arrival",
    "Busy",
    "Candidate",
    "Effect",
    "Engine",
    "Event",
    "FieldError",
    "Finished",
    "Gone",
    "Greedy",
    "Measures",
    "ModelUnavailable",
    "Passage",
    "Request",
    "Result",
    "Round",
    "Run",
    "Sampling",
    "Started",
    "Status",
    "Step",
    "TextMeasures",
    "Waiting",
    "Workload",
]
