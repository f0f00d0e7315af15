"""Messages of the hot path: step jobs to an instance, results back. Columns of equal length, raw bytes.

A *ticket* names one attempt at one request on the scheduler's side: unique within an epoch, and above all before it.
A step job is named by (ticket, step); the same name never runs twice.
"""

import enum

import msgspec


class StepKind(enum.IntEnum):
    RECOMPUTE = 0  # forward over the whole sequence, rebuilding the KV cache
    CACHE = 1  # forward over the current block, against the cached keys and values


RECOMPUTE, CACHE = int(StepKind.RECOMPUTE), int(StepKind.CACHE)  # members are slow to look up


class RequestState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request's state, for a worker that does not hold it. It replaces an older state of the same ticket."""

    ticket: int
    request_id: str
    prompt_length: int  # tokens
    block_length: int  # tokens
    canvas: bytes  # int32 [P + O]: the prompt, then the output with its masks
    temperature: float = 0.0
    seed: int = 0
    trace: dict[str, str] = {}  # W3C trace context
    guesses: bool = False  # whether its client watches the canvas
    end_ids: bytes = b""  # int32 [e]: once a block holds one of these tokens, no later block is begun


class StepJobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scheduler -> worker: run one denoising step of each of n requests.

    Subject: dilaserve.<cell>.steps.<instance>. Stream: STEPS (memory, work queue).
    Unique by (epoch, number). Jobs with an epoch below the highest seen are refused. A message may carry no job, only
    drops. A request's jobs come in their order, and one of them may be sent ahead: it is passed over if the step before
    it has ended its block. Of two with the same number, each in a block of its own, the first that is not passed over
    runs.
    """

    epoch: int
    number: int = 0  # of this message, from 1 within an epoch; 0: not numbered
    tickets: bytes = b""  # int64 [n]
    steps: bytes = b""  # int32 [n], from 0
    blocks: bytes = b""  # int32 [n], index of the current block
    thresholds: bytes = b""  # float32 [n], in [0, 1]
    kinds: bytes = b""  # int32 [n], StepKind
    states: list[RequestState] = []  # for tickets that the instance does not hold
    drops: bytes = b""  # int64 [m]: tickets to forget (finished, cancelled or moved away)
    forget_below: int = 0  # so are those below, but for those of `states`: what was said of them may never have come
    sent_s: float = 0.0  # Unix time, seconds


class StepFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A step that cannot be run, ever: the request is failed with this message."""

    ticket: int
    message: str


class StepResults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Worker -> scheduler: what one iteration (one batch of denoising steps) unmasked.

    Subject: dilaserve.<cell>.step-results.<instance>. Stream: STEP_RESULTS (memory). One message an iteration.
    """

    instance_id: str
    epoch: int
    tickets: bytes = b""  # int64 [n]
    steps: bytes = b""  # int32 [n]
    counts: bytes = b""  # int32 [n], tokens unmasked, at least 1 each
    positions: bytes = b""  # int32 [sum of counts], from the start of the output
    tokens: bytes = b""  # int32 [sum of counts]
    confidences: bytes = b""  # float32 [sum of counts]
    # float32 [n, 5]: min, lower quartile, median, mean, upper quartile of the known confidences of the output:
    # those of unmasked tokens when they were unmasked, those of the current block's masks in this step
    confidence_stats: bytes = b""
    missing: bytes = b""  # int64 [m]: tickets of jobs whose state this worker lacks
    failures: list[StepFailure] = []
    latency_s: float = 0.0  # seconds of the iteration
    batch_tokens: int = 0  # tokens computed by it
    sent_s: float = 0.0  # Unix time, seconds
