"""What the gateway tells of the cluster, as the OpenAPI document describes it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from services.gateway.api.response_models import Serving, StoredRequestError
from shared.messages.requests import OutcomeStatus


class View(BaseModel):
    model_config = ConfigDict(frozen=True)


class LoadView(View):
    """The cell over the last half minute, as its scheduler tells it. None: nothing to tell it by."""

    t_s: float  # Unix time, seconds
    rps: float | None = None  # requests that arrived, a second
    slo_attainment: float | None = None  # 0 to 1
    mean_threshold: float | None = None  # weighted by tokens
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    tokens_per_s: float | None = None  # unmasked
    running: int | None = None  # requests now on instances
    waiting: int | None = None  # requests now without a place


class InstanceView(View):
    """One instance: one TP group. What it carries is None where no scheduler tells."""

    id: str
    state: str  # starting, ready or draining
    tp_degree: int
    gpus: list[int]  # of its node; empty on a CPU
    device: str
    requests: int | None  # placed on it
    max_requests: int  # of one batch
    tokens: int | None  # prompt and output tokens of its requests
    max_tokens: int  # of one batch
    step_latency_ms: float | None  # of a recompute step of all its requests


class NodeView(View):
    name: str
    instances: list[InstanceView]


class ClusterView(View):
    """The cell as the gateway sees it."""

    cell: str
    model: str
    policy: str | None  # None: no scheduler leads
    ready: bool
    reason: str | None  # why it is not ready
    nodes: list[NodeView]


class Update(View):
    """One event of GET /events."""

    loads: list[LoadView]  # since the event before; in the first event the last minutes
    cluster: ClusterView
    ended: int  # counts requests that ended
    plans: int  # counts what was heard of decisions


class RequestSummary(View):
    """A request that has ended."""

    id: str
    status: OutcomeStatus
    arrival_s: float  # Unix time, seconds
    text: str  # its beginning
    error: StoredRequestError | None
    dilaserve: Serving


class RequestList(View):
    object: Literal["list"]
    data: list[RequestSummary]


class PlaceView(View):
    """Where an instance stands: one TP rank a GPU."""

    node: str
    gpus: list[int]


class ClassView(View):
    """What was seen of one request class: requests a second; means in tokens and seconds."""

    name: str
    rps: float
    prompt_tokens: float
    output_tokens: float
    slo_s: float


class PlanEventView(View):
    at_s: float  # Unix time, seconds
    text: str


class PlanView(View):
    """One decision of the reconfigurator."""

    plan_id: str
    decided_s: float  # Unix time, seconds
    ended_s: float | None
    state: str  # stayed, running, done or failed
    reason: str
    status: str  # optimal, feasible or fallback; empty: no plan was made
    mean_threshold: float | None  # as planned
    slack_s: float | None  # as planned
    solve_s: float | None
    classes: list[ClassView]
    before: list[PlaceView]
    target: list[PlaceView]
    events: list[PlanEventView]


class PlanList(View):
    object: Literal["list"] = "list"
    data: list[PlanView]
