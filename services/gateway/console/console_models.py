"""Models of the console's API: cluster and load."""

from services.gateway.api.response_models import ResponseModel


class LoadView(ResponseModel):
    """The cell's load over the last 30 s, from its scheduler. None: no data."""

    t_s: float  # Unix time, seconds
    rps: float | None = None  # arrivals per second
    slo_attainment: float | None = None  # 0 to 1
    mean_threshold: float | None = None  # weighted by unmasked tokens
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    tokens_per_s: float | None = None  # unmasked tokens
    running: int | None = None  # requests on instances
    waiting: int | None = None  # requests that no instance has room for


class InstanceView(ResponseModel):
    """One instance. Its load is None if no scheduler leads."""

    id: str
    state: str  # starting, ready or draining
    tp_degree: int
    gpus: list[int]  # numbers on its node; empty on a CPU
    device: str
    requests: int | None  # requests placed on it
    max_requests: int  # maximum per batch
    tokens: int | None  # prompt and output tokens of its requests
    max_tokens: int  # maximum per batch
    step_latency_ms: float | None  # latency of a recompute step of all its requests


class NodeView(ResponseModel):
    name: str
    instances: list[InstanceView]


class ClusterView(ResponseModel):
    """The state of the cell."""

    cell: str
    model: str
    policy: str | None  # None: no scheduler leads
    ready: bool
    reason: str | None  # why it is not ready
    nodes: list[NodeView]


class Update(ResponseModel):
    """One event of GET /events."""

    loads: list[LoadView]  # since the previous event; in the first event the last minutes
    cluster: ClusterView
    ended: int  # number of finished requests
    plans: int  # number of plan messages received
