"""The inputs (events) and outputs (commands) of the scheduler's core: plain data. A StepResults message is an event."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.arrays import Float32, Float64, Int32, Int64
from shared.edits import NO_EDITS
from shared.messages.checkpoints import Checkpoint
from shared.messages.decisions import StepDecisions
from shared.messages.instances import Instance
from shared.messages.requests import OutcomeError, OutcomeStatus, Progress, Request, ServingStats
from shared.messages.steps import StepJobs, StepResults
from shared.pinned import count_pinned
from shared.top_tokens import TopTokenTable

TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")  # at the start of a W3C `traceparent`


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A new request, tokenized and checked. `delivery` identifies its message on the bus."""

    request: Request  # live without its prompt, which is held as `prompt_ids` only
    prompt_ids: Int32  # [P]
    output_length: int  # tokens, whole blocks
    slo_s: float
    arrival_s: float
    delivery: Any = None
    checkpoint: Checkpoint | None = None  # progress under an earlier scheduler
    trace: dict[str, str] = field(default_factory=dict)  # W3C trace context
    block_offset: int = 0  # tokens of the prompt that belong to the output's first block
    salt: str = ""  # only requests of the same salt share cached prefixes
    choices: Sequence[Int32] = ()  # the tokens of each of its labels
    edit_threshold: float = NO_EDITS  # tokens of the block change if another one's probability is higher

    @property
    def free_tokens(self) -> int:
        """The tokens of the output that steps write."""
        return self.output_length - count_pinned(self.request)

    @property
    def trace_id(self) -> str:
        """The id of the trace, 32 hexadecimal digits; empty without one."""
        found = TRACE_ID.match(self.trace.get("traceparent", ""))
        return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    request_id: str


@dataclass(frozen=True, slots=True)
class StepsLost:
    """The bus was restarted and has lost all step messages."""


@dataclass(frozen=True, slots=True)
class InstanceUpdated:
    instance: Instance


@dataclass(frozen=True, slots=True)
class InstanceLost:
    instance_id: str


@dataclass(frozen=True, slots=True)
class InstanceQuarantined:
    """The instance computes wrong: the tokens of the requests on it may be wrong."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class EstimatesReceived:
    """The step predictor's answer to a RequestEstimates."""

    tickets: Int64  # [n]
    steps: Int32  # [n], steps done at the time of the request
    steps_left: Float64  # [n, c], by candidate threshold


@dataclass(frozen=True, slots=True)
class EstimatesFailed:
    """No step predictor answered in time."""

    tickets: Int64  # [n]


Event = (
    RequestArrived
    | RequestCancelled
    | StepResults
    | StepsLost
    | InstanceUpdated
    | InstanceLost
    | InstanceQuarantined
    | EstimatesReceived
    | EstimatesFailed
)


@dataclass(frozen=True, slots=True)
class SendJobs:
    instance_id: str
    jobs: StepJobs


@dataclass(frozen=True, slots=True)
class SendProgress:
    request_id: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class FinishRequest:
    """Store the outcome, then acknowledge the delivery."""

    arrived: RequestArrived
    status: OutcomeStatus
    output_ids: Int32  # [tokens before the first mask]; of a completed request all of its blocks up to its end
    stats: ServingStats | None
    decisions: StepDecisions | None
    error: OutcomeError | None = None
    confidences: Float32 | None = None  # of `output_ids`; None without `logprobs`
    top_tokens: TopTokenTable | None = None  # of the output; None without `top_logprobs`
    choices: Float32 | None = None  # the probability of each label, if a step has read them
    written_by: frozenset[str] = frozenset()  # ids of instances that may have written a part of the output


@dataclass(frozen=True, slots=True)
class RequestEstimates:
    """Request estimates from the step predictor; EstimatesReceived or EstimatesFailed follows."""

    tickets: Int64  # [n]
    steps: Int32  # [n]
    features: Float32  # [n, 10], see shared.predictor_features
    masks_left: Int32  # [n]
    blocks_left: Int32  # [n]
    traces: Sequence[Mapping[str, str]] = ()  # the W3C trace contexts of those that have one


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    request_id: str
    checkpoint: Checkpoint
    is_urgent: bool = False  # a client receives the step's tokens after it


Command = SendJobs | SendProgress | SaveCheckpoint | FinishRequest | RequestEstimates


def fault_of(error: Exception) -> OutcomeError:
    """The error of a request whose data raised an unexpected error in the scheduler."""
    return OutcomeError(message=f"the scheduler cannot serve this request: {error!r}")
