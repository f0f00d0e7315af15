"""Messages of the hot path: step jobs to an instance, results back. Their columns are raw bytes of equal length.

A *ticket* is the number of one attempt at a request; tickets increase within an epoch. A step job is identified by
(ticket, step) and runs at most once.
"""

import enum
from typing import Annotated

import msgspec

from shared.messages.requests import Sampling, TopTokens

Ticket = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


MAX_POST_STEPS = 16  # steps of a block that begin without masks, as LLaDA2.1 has it


class StepKind(enum.IntEnum):
    RECOMPUTE = 0  # forward over the whole sequence, rebuilding the KV cache
    CACHE = 1  # forward over the current block, against the cached keys and values


RECOMPUTE, CACHE = int(StepKind.RECOMPUTE), int(StepKind.CACHE)  # enum members are slow to look up


class RequestState(Sampling, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request's state, for a worker that does not hold it. It replaces an older state of the same ticket."""

    ticket: int
    request_id: str
    prompt_length: int  # tokens
    block_length: int  # tokens
    canvas: bytes  # int32 [P + O]: the prompt, then the output with its masks
    confidences: bytes = b""  # float32 of the first output tokens, when they were unmasked; 0: none, or not known
    seed: int = 0
    trace: dict[str, str] = {}  # W3C trace context
    guesses: bool = False  # whether its client wants provisional tokens
    end_ids: bytes = b""  # int32 [e]: no block begins after one that contains one of these tokens
    edit_threshold: float = 1.0  # tokens of the block change if another one's probability is higher; 1: none changes
    post_steps: int = 0  # steps of the current block so far that began without masks
    max_post_steps: int = MAX_POST_STEPS  # these of a block, after which it ends
    # float32: of a model that denoises canvases, the thresholds of the current block's steps, which the worker repeats
    block_thresholds: bytes = b""
    top_logprobs: int = 0  # tokens whose probabilities its results have, at each position that a step unmasks
    pattern: str = ""  # as in Request
    pinned: bytes = b""  # as in Request
    text_tokens: int = 0  # the most tokens of the text, which is cut there; 0: those of the output
    choices: list[bytes] = []  # int32 each: the tokens of the labels, one of which is the text; empty: any text
    salt: str = ""  # only requests of the same salt share cached prefixes


class StepJobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scheduler -> worker: run one denoising step of each of n requests.

    Subject: dilaserve.<cell>.steps.<instance>. Stream: STEPS (memory, work queue).
    Unique by (epoch, number). Jobs of an epoch below the highest one received are refused. A message may have drops
    only. A request's jobs arrive in order. A job may be sent ahead of the previous step's result; it is skipped if that
    step ended its block. If two jobs, of different blocks, share a step number, the first one not skipped runs.
    """

    epoch: int
    number: int = 0  # of this message, from 1 within an epoch; 0: unnumbered
    tickets: bytes = b""  # int64 [n]
    steps: bytes = b""  # int32 [n], from 0
    blocks: bytes = b""  # int32 [n], index of the current block
    thresholds: bytes = b""  # float32 [n], in [0, 1]
    kinds: bytes = b""  # int32 [n], StepKind
    batches: bytes = b""  # int32 [n] or empty: number of the iteration that runs each job, or a later one; 0: any
    states: list[RequestState] = []  # for tickets that the instance does not hold
    drops: bytes = b""  # int64 [m]: tickets to forget (finished, cancelled or moved away)
    forget_below: int = 0  # also forget the tickets below this one, except those of `states`; earlier drops may be lost
    sent_s: float = 0.0  # Unix time, seconds


class StepFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A step that can never run. The scheduler fails the request with this message; an invalid one is rejected."""

    ticket: Ticket
    message: str
    field: str | None = None  # of the request, which is invalid; None: the request is valid


class StepTopTokens(TopTokens, frozen=True, kw_only=True):
    """Those of the positions that one step unmasked."""

    ticket: Ticket


class StepChoices(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each of a request's labels, by one step."""

    ticket: Ticket
    probabilities: bytes  # float32 [labels], of which the sum is 1


class StepResults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Worker -> scheduler: the tokens that one iteration (one batch of denoising steps) unmasked.

    Subject: dilaserve.<cell>.step-results.<instance>. Stream: STEP_RESULTS (memory). One message per iteration.
    """

    instance_id: str
    epoch: int
    tickets: bytes = b""  # int64 [n]
    steps: bytes = b""  # int32 [n]
    counts: bytes = b""  # int32 [n], tokens unmasked or changed; 0 only of a step that began without masks
    positions: bytes = b""  # int32 [sum of counts], from the start of the output
    tokens: bytes = b""  # int32 [sum of counts]
    confidences: bytes = b""  # float32 [sum of counts]
    # float32 [n, 5]: min, lower quartile, median, mean, upper quartile of the output's known confidences: each unmasked
    # token's when it was unmasked, and those of the current block's masks in this step
    confidence_stats: bytes = b""
    cached: bytes = b""  # int32 [n]: tokens that the step did not feed, as a prefix cache had them; empty: none
    missing: bytes = b""  # int64 [m]: tickets of jobs whose request this worker does not hold
    failures: list[StepFailure] = []
    top_tokens: list[StepTopTokens] = []  # of the requests that want them
    choices: list[StepChoices] = []  # of the requests with labels
    latency_s: float = 0.0  # seconds of the iteration
    batch_tokens: int = 0  # tokens computed by it
    sent_s: float = 0.0  # Unix time, seconds
