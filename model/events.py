"""What a run reports while it decodes: plain data that pickles.

A stream is `Started`, then any number of `Waiting`, then one `Step` per token, then exactly one
`Finished`. Probabilities are fractions of one, logits and entropies are in nats, times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token that the model offers at a step.

    Attributes:
        token_id: its number in the vocabulary.
        label: its text for people; white space visible, unique in the vocabulary.
        logit: the model's score before any processor.
        raw_prob: softmax of the logits.
        final_prob: after every processor, renormalised; 0.0 where the token was cut.
        cut_by: None, or the processor that removed it (`"top_k"`, `"top_p"`, …).
    """

    token_id: int
    label: str
    logit: float
    raw_prob: float
    final_prob: float
    cut_by: str | None


@dataclass(frozen=True, slots=True)
class Effect:
    """What one processor did at a step, in the order in which they act.

    Attributes:
        processor: its name, spelled as in `Candidate.cut_by`.
        cut: tokens that it removed.
        cut_prob: raw probability that these held together.
        changed: tokens whose score it changed without removing them.
        top_before, top_after: probability of the likeliest token before and after it.
    """

    processor: str
    cut: int
    cut_prob: float
    changed: int
    top_before: float
    top_after: float


@dataclass(frozen=True, slots=True)
class Step:
    """One decision: the distribution at one position and the token that was taken.

    Attributes:
        index: 0 for the first new token of the run.
        token_id: the token appended to the text.
        text: what this token adds to the text; may be empty while a character is incomplete.
        label: the token for people, as in `Candidate`.
        raw_prob, final_prob: its probability before and after the processors.
        rank: 1 = the model's favourite, by logits; ties go to the smaller id.
        entropy: of the raw distribution, nats.
        final_entropy: of the final distribution, nats.
        kept: how many tokens the processors leave.
        kept_prob: raw probability that the kept tokens hold together.
        effects: what each processor that is not neutral did.
        draw: the uniform number in [0, 1), None where nothing was drawn.
        span: where `choice` lies on the ruler of cumulative final probability, likeliest token
            first: (low, high) with low <= draw < high; None where nothing was drawn.
        choice: the token that the strategy picked; `token_id` unless a person forced another.
        forced: a person chose this token.
        candidates: the likeliest by raw probability, in that order (ties: smaller id first);
            the likeliest of the final distribution, `token_id` and `choice` always among them.
        duration_s: the engine's work on this step: forward pass, choice and report, of the first
            step the prompt too. Waiting, pace and pause count nowhere; where one pass yields
            several tokens, the pass belongs to the first of them.
    """

    index: int
    token_id: int
    text: str
    label: str
    raw_prob: float
    final_prob: float
    rank: int
    entropy: float
    final_entropy: float
    kept: int
    kept_prob: float
    effects: tuple[Effect, ...]
    draw: float | None
    span: tuple[float, float] | None
    choice: int
    forced: bool
    candidates: tuple[Candidate, ...]
    duration_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """The run was accepted.

    Attributes:
        handle: names the run to the engine; unguessable.
        prompt_ids: the exact tokens sent, special ones included.
        prompt_labels: the same for people, as in `Candidate`.
        prompt_texts: what each adds to the running text (empty for special tokens).
        inherited: steps taken over from the run this one branched from.
        parent: handle of that run, if any.
        model, device, precision: what decodes.
        seed: the seed in use, also when none was given; None where nothing is drawn.
        max_new_tokens: the limit in use.
        vocab_size: number of logits per step.
    """

    handle: str
    prompt_ids: tuple[int, ...]
    prompt_labels: tuple[str, ...]
    prompt_texts: tuple[str, ...]
    inherited: int
    parent: str | None
    model: str
    device: str
    precision: str
    seed: int | None
    max_new_tokens: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run waits for a place. `place` is 1 for the next one to be served."""

    place: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The run ended.

    Attributes:
        reason: `"eos"`, `"length"`, `"stop"`, `"cancelled"` or `"error"`.
        message: what went wrong, for `"error"`; else empty.
        text: the new text, special tokens left out, cut before the stop string.
        prefill_s: the engine's work up to the first new token: what no kept cache held of the
            prompt (and of the steps taken over), the first choice and its report.
        decode_s: time from the first new token to the last.
        tokens_per_s: new tokens after the first, over `decode_s`; 0.0 with fewer than two.
        cache_bytes: keys and values of all tokens that the run's rows held at the end: tokens x
            2 x layers x key-value heads x head size x bytes a number.
        reused: tokens at the beginning, of the prompt and of steps taken over, whose keys and
            values were still there from an earlier run.
    """

    reason: str
    message: str
    text: str
    prefill_s: float
    decode_s: float
    tokens_per_s: float
    cache_bytes: int
    reused: int


Event = Started | Waiting | Step | Finished
