"""What the gateway tells of the cluster, as the OpenAPI document describes it."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class View(BaseModel):
    model_config = ConfigDict(frozen=True)


class Load(View):
    """The cell over the last ten seconds. None: nothing to tell it by."""

    t_s: float  # Unix time, seconds
    rps: float  # requests that ended, a second
    slo_attainment: float | None  # 0 to 1
    mean_threshold: float | None  # weighted by tokens
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    tokens_per_s: float  # tokens of the texts of requests that ended
    active: int | None = None  # requests now placed on instances
    waiting: int | None = None  # requests now held, not placed


class InstanceView(View):
    """One instance: one TP group."""

    id: str
    state: str  # starting, ready or draining
    tp_degree: int
    gpus: list[int]  # of its node; empty on a CPU
    device: str
    requests: int | None  # placed on it; None: not known
    max_batch_requests: int
    max_batch_tokens: int


class NodeView(View):
    """The instances of one node."""

    name: str
    instances: list[InstanceView]
    free_gpus: list[int]


class ClusterView(View):
    """The cell as the gateway sees it."""

    cell: str
    model: str
    ready: bool
    reason: str | None  # why it is not ready
    nodes: list[NodeView]


class Update(View):
    """One event of GET /events."""

    loads: list[Load]  # the latest second; in the first event the last minutes
    cluster: ClusterView
    ended: int  # counts requests that ended
    plans: int  # counts what was heard of decisions


class RequestSummary(View):
    """A request that has ended."""

    id: str
    status: str
    arrival_s: float  # Unix time, seconds
    text: str  # its beginning
    error: dict[str, str | None] | None
    dilaserve: dict[str, Any]


class RequestList(View):
    object: Literal["list"] = "list"
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
