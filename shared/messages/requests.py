"""Messages at the edge: what clients ask and what they get. MessagePack inside, JSON accepted from producers."""

import enum
from typing import Annotated

import msgspec

from shared.messages.decisions import StepDecisions

MAX_OUTPUT_TOKENS = 8192  # a bound on what one message can ask for; the model's own limit is usually lower
DEFAULT_BLOCK_LENGTH = 32
YEAR_10000_S = 253402300800.0  # Unix time: what lies beyond is no time, but often one in milliseconds

RequestId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")]  # `$` alone lets a newline follow


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Gateway or internal producer -> scheduler: one request.

    Subject: dilaserve.<cell>.requests. Stream: REQUESTS (file, work queue). Unique by request_id: a second
    message with the id of a running or finished request changes nothing.
    Exactly one of `prompt`, `messages` (through the model's chat template) and `prompt_ids` is given.
    """

    request_id: RequestId
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    prompt_ids: bytes | None = None  # int32 little-endian, shape [P]
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_OUTPUT_TOKENS)] = 128  # rounded up to whole blocks
    block_length: Annotated[int, msgspec.Meta(ge=1, le=1024)] = DEFAULT_BLOCK_LENGTH  # tokens
    slo_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # seconds from arrival; None: the cell's default
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0  # higher first
    min_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # the client's quality floor
    temperature: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0  # 0: greedy
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None  # None: by the request's id
    stop: list[str] = []
    stream: bool = False  # whether `progress` messages are wanted
    guesses: bool = False  # whether `guesses` messages are, too
    # Unix time, seconds; None: when the bus took the message
    arrival_s: Annotated[float, msgspec.Meta(ge=0, lt=YEAR_10000_S)] | None = None


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> workload monitor: a request was read and will be served.

    Subject: dilaserve.<cell>.arrivals. Stream: ARRIVALS (file, limited age). Unique by request_id.
    """

    request_id: str
    arrival_s: float  # Unix time, seconds
    prompt_tokens: int
    output_tokens: int  # asked for, in whole blocks
    slo_s: float


class OutcomeStatus(enum.StrEnum):
    COMPLETED = "completed"
    REJECTED = "rejected"  # the request itself is wrong; `error` says what
    FAILED = "failed"  # the system's fault
    CANCELLED = "cancelled"


class FinishReason(enum.StrEnum):
    STOP = "stop"  # the model ended its text, or a stop string was met
    LENGTH = "length"  # the output length was used up


class OutcomeError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    field: str | None = None  # the request's field at fault


class ThresholdUse(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that ran at one threshold, and the tokens they unmasked."""

    threshold: float  # the nearest candidate from above, if it is none itself
    steps: int
    tokens: int


class ServingStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a request was served."""

    steps: int  # denoising steps run
    recompute_steps: int  # of these, forwards over the whole sequence
    mean_threshold: float  # weighted by tokens unmasked
    min_threshold: float  # lowest used
    slo_s: float
    latency_s: float  # arrival to last token
    slo_met: bool
    instances: list[str]  # in the order of first use
    migrations: int
    unmasked_tokens: int = 0
    thresholds: list[ThresholdUse] = []  # those used, ascending
    step_s: float = 0.0  # of the latency, computing: the iterations that ran its steps
    predicted_steps: float | None = None  # in all, by the step predictor's first answer, at the threshold then in use


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scheduler -> anyone: how a request ended.

    Subject: dilaserve.<cell>.outcomes.<request>. Stream: OUTCOMES (file, last one per subject, limited age).
    Encoded as its request was: JSON for JSON, MessagePack for MessagePack. Unique by request_id.
    """

    request_id: str
    status: OutcomeStatus
    text: str = ""
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0  # tokens of the text, up to the end-of-text token
    output_tokens: int = 0  # tokens asked for, in whole blocks
    arrival_s: float = 0.0  # Unix time, seconds
    stats: ServingStats | None = None  # None where no step ran
    decisions: StepDecisions | None = None  # likewise
    error: OutcomeError | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> gateway: tokens unmasked by one step, for a request whose client streams.

    Subject: dilaserve.<cell>.progress.<request>. Core NATS: one may be lost; the outcome holds the whole text.
    """

    step: int
    positions: bytes  # int32 [n], from the start of the output
    tokens: bytes  # int32 [n]
    confidences: bytes  # float32 [n]


class Guesses(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> gateway: what one step would have put where it left masks, for a client that watches the canvas.

    Subject: dilaserve.<cell>.guesses.<request>. Core NATS: one may be lost.
    """

    step: int
    positions: bytes  # int32 [n], from the start of the output
    tokens: bytes  # int32 [n]
    confidences: bytes  # float32 [n]


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """Gateway or producer -> scheduler: nobody waits for this request any more.

    Subject: dilaserve.<cell>.cancel.<request>. Core NATS; the subject names the request.
    """

    reason: str = ""
