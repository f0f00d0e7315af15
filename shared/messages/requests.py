"""Requests and their outcomes. MessagePack between services; producers can send JSON."""

import enum
from typing import Annotated, Any, Literal

import msgspec

from shared.messages.decisions import StepDecisions
from shared.messages.numbers import Finite

MAX_OUTPUT_TOKENS = 8192  # limit of one request; the model's own limit is usually lower
DEFAULT_BLOCK_LENGTH, MAX_BLOCK_LENGTH = 32, 1024
MAX_STOPS, MAX_STOP_LENGTH = 64, 1000  # of one request, and characters of each
MAX_STOP_TOKENS = 128  # of one request
MAX_BIASED_TOKENS = 1024  # of one request
MAX_TOP_LOGPROBS = 20
MAX_LABELS = 1000
MAX_KEY_LENGTH = 64  # characters of an API key's id

RequestId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")]  # `$` alone lets a newline follow

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str


MAX_PATTERN_LENGTH = 100_000  # characters


# The fields that change logits, and their values without an effect
CHANGES = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": dict[int, float](),
}


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are drawn. These fields of a request go to the worker as they are."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0  # 0: greedy
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # draw from the most probable tokens of this total; 1: all
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = 0  # draw from this many of them; 0 or -1: all
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # least probability of a drawn token over the highest one
    # The logits of tokens that the output has are lower by the first, and by the second for each time
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=10)] = 1.0  # divides those of the prompt's tokens, too
    logit_bias: Annotated[
        dict[TokenId, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=MAX_BIASED_TOKENS)
    ] = {}  # added to the logits of these tokens

    @property
    def changes_logits(self) -> bool:
        """Whether it has a penalty or a bias."""
        return any(getattr(self, name) != usual for name, usual in CHANGES.items())

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that the text has count."""
        return any(getattr(self, name) != usual for name, usual in CHANGES.items() if name != "logit_bias")

    def own_fields(self) -> dict[str, Any]:
        """These fields alone."""
        return {name: getattr(self, name) for name in Sampling.__struct_fields__}


class Request(Sampling, frozen=True, kw_only=True, omit_defaults=True):
    """Gateway or internal producer -> scheduler: one request.

    Subject: dilaserve.<cell>.requests, of a named producer dilaserve.<cell>.requests.<producer>; its id in the cell is
    then <producer>.<request_id>. Stream: REQUESTS (file, work queue). Unique by request_id: a second message with the
    id of a running or finished request changes nothing.
    It has exactly one of `prompt`, `messages` (for the model's chat template) and `prompt_ids`.
    """

    request_id: RequestId
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    prompt_ids: bytes | None = None  # int32 little-endian, shape [P]
    output_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_OUTPUT_TOKENS)] = 128  # rounded up to whole blocks
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None  # of the text, which is cut there; None: no limit
    block_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_LENGTH)] = DEFAULT_BLOCK_LENGTH  # tokens
    slo_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None  # seconds from arrival; None: the cell's default
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0  # higher first
    min_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # the client's quality floor
    # Tokens of the block change to one whose probability is higher; 1: none changes; None: as the cell has it
    edit_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None  # None: derived from the id
    stop: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MAX_STOP_LENGTH)]], msgspec.Meta(max_length=MAX_STOPS)
    ] = []
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=MAX_STOP_TOKENS)] = []  # each ends the text
    ignore_eos: bool = False  # end-of-text tokens do not end the text
    # A regular expression (Rust's regex syntax) that the whole text must match, or an automaton as `PatternAutomaton`
    # writes it, which workers before it refuse; empty: none
    pattern: Annotated[str, msgspec.Meta(max_length=MAX_PATTERN_LENGTH)] = ""
    # Labels, one of which is the text, in one step; the outcome has the probability of each. Empty: any text
    choices: Annotated[list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(max_length=MAX_LABELS)] = []
    # int32 little-endian [n], the first n tokens of the output: those given here, which no step changes, and -1 where
    # the model writes; empty: it writes all
    pinned: Annotated[bytes, msgspec.Meta(max_length=4 * MAX_OUTPUT_TOKENS)] = b""
    logprobs: bool = False  # whether the outcome has `token_ids` and `confidences`
    # With `logprobs`: also `top_tokens`, k each
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    stream: bool = False  # send `progress` messages
    guesses: bool = False  # send `guesses` messages
    # The scheduler may refuse it if it could not meet its SLO, within ACCEPT_S; else it sends ACCEPTED
    may_refuse: bool = False
    age_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0  # seconds from its arrival to this message's publication
    key: Annotated[str, msgspec.Meta(max_length=MAX_KEY_LENGTH)] = ""  # API key's id, or a producer's name; empty: none


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> workload monitor: a request has arrived, also if it has to wait.

    Subject: dilaserve.<cell>.arrivals. Stream: ARRIVALS (file, limited age). Unique by request_id.
    """

    request_id: str
    arrival_s: float  # Unix time, seconds
    prompt_tokens: int  # with the pinned ones; of a text that has to wait: estimated from its length
    output_tokens: int  # requested, in whole blocks, without the pinned ones
    slo_s: float


class OutcomeStatus(enum.StrEnum):
    COMPLETED = "completed"
    REFUSED = "refused"  # it could not meet its SLO; only of a request with `may_refuse`
    REJECTED = "rejected"  # the request is invalid; see `error`
    FAILED = "failed"  # an error of the system
    CANCELLED = "cancelled"


class FinishReason(enum.StrEnum):
    STOP = "stop"  # end-of-text token, stop token or stop string
    LENGTH = "length"  # output length reached


class OutcomeError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    field: str | None = None  # the invalid field
    retry_after_s: Finite | None = None  # of a refused request: seconds after which it could meet its SLO
    is_lost: bool = False  # the bus has lost the request; it may be sent again, and the new outcome replaces this one


class ThresholdUse(msgspec.Struct, frozen=True, kw_only=True):
    """The steps at one threshold, and the tokens they unmasked."""

    threshold: Finite  # rounded up to a candidate threshold
    steps: int
    tokens: int


class ServingStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a request was served."""

    steps: int  # denoising steps run
    recompute_steps: int  # recompute steps among them
    mean_threshold: Finite  # weighted by tokens unmasked
    min_threshold: Finite  # lowest threshold used
    slo_s: Finite
    latency_s: Finite  # arrival to last token
    slo_met: bool
    slo_feasible: bool = True  # false: the policy estimated that no threshold meets the SLO
    instances: list[str]  # in order of first use
    migrations: int
    unmasked_tokens: int = 0
    thresholds: list[ThresholdUse] = []  # ascending
    step_s: Finite = 0.0  # computing time: total of the iterations that ran its steps
    cached_tokens: int = 0  # of the prompt, that a prefix cache had
    edits: int = 0  # changes of tokens that an earlier step had unmasked
    predicted_steps: Finite | None = None  # total, by the first prediction, at its threshold


class TopTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The k most probable tokens at n positions, at the step that unmasked each, the most probable first."""

    positions: bytes  # int32 [n], from the start of the output
    tokens: bytes  # int32 [n, k]
    confidences: bytes  # float32 [n, k]: probabilities


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scheduler -> any subscriber: the outcome of a request.

    Subject: dilaserve.<cell>.outcomes.<request>. Stream: OUTCOMES (file, last one per subject, limited age).
    Encoded as the request: JSON or MessagePack. Unique by request_id.
    """

    request_id: str
    status: OutcomeStatus
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop token or stop string that ended the text; None: neither
    prompt_tokens: int = 0  # with the pinned ones
    completion_tokens: int = 0  # tokens of the text that the model wrote, with its stop string, without its end token
    token_ids: bytes = b""  # int32 [completion_tokens]; empty without `logprobs`
    confidences: bytes = b""  # float32 [completion_tokens], each token's at its step; empty without `logprobs`
    top_tokens: TopTokens | None = None  # of `token_ids`, where known; None without `top_logprobs`
    choices: dict[str, Finite] = {}  # the probability of each of the request's labels
    output_tokens: int = 0  # requested, in whole blocks
    arrival_s: Finite = 0.0  # Unix time, seconds
    stats: ServingStats | None = None  # None: no step ran
    decisions: StepDecisions | None = None  # None: no step ran
    error: OutcomeError | None = None
    key: str = ""  # of the request; empty: none, or the request ended before it was decoded
    priority: int = 0  # of the request
    trace_id: str = ""  # of its trace (W3C), 32 hexadecimal digits; empty: none
    unverified: bool = False  # an instance that served it was found to compute wrong: the text may be wrong

    @property
    def is_final(self) -> bool:
        """Whether no other outcome replaces it."""
        return self.status is not OutcomeStatus.REFUSED and (self.error is None or not self.error.is_lost)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> gateway: the tokens that one step unmasked, for a streaming client.

    Subject: dilaserve.<cell>.progress.<request>. Core NATS: may be lost; the outcome holds the whole text. Where tokens
    may change, those of each step are drafts, except that the last step of a block sends all tokens of the block.
    """

    step: int
    positions: bytes  # int32 [n], from the start of the output
    tokens: bytes  # int32 [n]
    confidences: bytes  # float32 [n]
    top_tokens: TopTokens | None = None  # of the same positions; None without `top_logprobs`
    is_draft: bool = False  # a later step may change them


ACCEPTED = Progress(step=-1, positions=b"", tokens=b"", confidences=b"")  # of a request with `may_refuse`: not refused
ACCEPT_S = 5.0  # after its arrival a request is no longer refused


class Guesses(Progress, frozen=True, kw_only=True):
    """Worker -> gateway: provisional tokens of the masks that one step left, for a client that shows the canvas.

    Subject: dilaserve.<cell>.guesses.<request>. Core NATS: may be lost.
    """


class ActiveRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request without an outcome. It is also the scheduler's reply to an empty message on
    dilaserve.<cell>.lookup.<request>. Core NATS."""

    is_known: bool  # whether the scheduler has it
    request_id: str = ""
    key: str = ""  # of the request; empty: none
    arrival_s: Finite = 0.0  # Unix time, seconds
    slo_s: Finite | None = None
    priority: int = 0
    output_tokens: int = 0  # to write: requested, in whole blocks, without the pinned ones
    unmasked_tokens: int = 0
    instance: str = ""  # that runs its next step; empty: it waits
    steps: int = 0
    migrations: int = 0
    mean_threshold: Finite | None = None  # weighted by unmasked tokens; None: nothing is unmasked
    trace_id: str = ""  # as in Outcome


class UnfinishedQuery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Gateway -> scheduler: which requests have no outcome? Subject: dilaserve.<cell>.unfinished. Core NATS."""

    key: str | None = None  # only those of this key; empty: of none; None: of all
    instance: str = ""  # only those on this instance; empty: on any, or on none
    id_part: str = ""  # only those whose id contains it


class UnfinishedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler -> gateway: the reply to an UnfinishedQuery."""

    requests: list[ActiveRequest]  # those that the scheduler holds first
    is_whole: bool = True  # whether there are no more


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gateway or producer -> scheduler: cancel a request. A reply of the bus, which anyone can send here, is invalid.

    Subject: dilaserve.<cell>.cancel.<request>. Core NATS; the subject names the request.
    """

    reason: str | None = ""
