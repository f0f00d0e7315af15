"""The inputs (events) and outputs (commands) of the scheduler's core: plain data. A StepResults message is an event."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

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


class RequestArrived(msgspec.Struct, frozen=True):
    """A new request, tokenized and checked. `delivery` identifies its message on the bus."""

    request: Request  # live without its prompt, which is held as `prompt_ids` only
    prompt_ids: Int32  # [P]
    output_length: int  # tokens, whole blocks
    slo_s: float
    arrival_s: float
    delivery: Any = None
    checkpoint: Checkpoint | None = None  # progress under an earlier scheduler
    trace: dict[str, str] = {}  # W3C trace context
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


class RequestCancelled(msgspec.Struct, frozen=True):
    request_id: str


class StepsLost(msgspec.Struct, frozen=True):
    """The bus was restarted and has lost all step messages."""


class InstanceUpdated(msgspec.Struct, frozen=True):
    instance: Instance


class InstanceLost(msgspec.Struct, frozen=True):
    instance_id: str


class InstanceQuarantined(msgspec.Struct, frozen=True):
    """The instance computes wrong: the tokens of the requests on it may be wrong."""

    instance_id: str


class EstimatesReceived(msgspec.Struct, frozen=True):
    """The step predictor's answer to a RequestEstimates."""

    tickets: Int64  # [n]
    steps: Int32  # [n], steps done at the time of the request
    steps_left: Float64  # [n, c], by candidate threshold


class EstimatesFailed(msgspec.Struct, frozen=True):
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


class SendJobs(msgspec.Struct, frozen=True):
    instance_id: str
    jobs: StepJobs


class SendProgress(msgspec.Struct, frozen=True):
    request_id: str
    progress: Progress


class FinishRequest(msgspec.Struct, frozen=True):
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


class RequestEstimates(msgspec.Struct, frozen=True):
    """Request estimates from the step predictor; EstimatesReceived or EstimatesFailed follows."""

    tickets: Int64  # [n]
    steps: Int32  # [n]
    features: Float32  # [n, 10], see shared.predictor_features
    masks_left: Int32  # [n]
    blocks_left: Int32  # [n]
    traces: Sequence[Mapping[str, str]] = ()  # the W3C trace contexts of those that have one


class SaveCheckpoint(msgspec.Struct, frozen=True):
    request_id: str
    checkpoint: Checkpoint
    is_urgent: bool = False  # a client receives the step's tokens after it


Command = SendJobs | SendProgress | SaveCheckpoint | FinishRequest | RequestEstimates


def fault_of(error: Exception) -> OutcomeError:
    """The error of a request whose data raised an unexpected error in the scheduler."""
    return OutcomeError(message=f"the scheduler cannot serve this request: {error!r}")
