"""The console's view of the cluster: its models for the OpenAPI document, built from bus messages."""

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from msgspec.structs import asdict
from nats.aio.msg import Msg
from pydantic import Field

from services.gateway.ready_reasons import Storage
from services.gateway.view_models import Ms, ResponseModel
from shared.bus.client import Bus, try_decode
from shared.bus.subjects import name_in
from shared.messages.health import HEALTH_S, ServiceHealth
from shared.messages.instances import Instance
from shared.messages.stats import InstanceLoad, SchedulerStats

SILENT_S = 3 * HEALTH_S  # silence after which a process counts as silent
FORGET_S = 300.0  # silence after which it is no longer shown


class ServiceView(ResponseModel):
    """A process of a service; workers are shown as instances."""

    service: str
    process: str  # host and process id
    state: str  # running, standby (a scheduler that does not lead) or silent
    silent_s: float  # since its last message
    uptime_s: float
    memory_bytes: int  # resident
    version: str


class ServiceWatch:
    def __init__(self) -> None:
        # By service and process: the message, and its time of the monotonic clock
        self._last: dict[tuple[str, str], tuple[ServiceHealth, float]] = {}

    async def subscribe(self, bus: Bus) -> None:
        await bus.nc.subscribe(bus.subjects.health("*"), cb=self._receive)

    def views(self, leader: str | None) -> list[ServiceView]:
        """Sorted by service; `leader` is the process of the scheduler that leads."""
        now_s = time.monotonic()
        self._last = {name: last for name, last in self._last.items() if now_s - last[1] < FORGET_S}
        by_name = sorted(self._last.items(), key=itemgetter(0))
        return [_view(service, health, now_s - at_s, leader) for (service, _), (health, at_s) in by_name]

    async def _receive(self, msg: Msg) -> None:
        if (health := try_decode(msg, ServiceHealth)) is not None:
            self.receive(name_in(msg.subject), health)

    def receive(self, service: str, health: ServiceHealth) -> None:
        name = service, health.process
        if health.has_ended:
            self._last.pop(name, None)
        else:
            self._last[name] = health, time.monotonic()


def _view(service: str, health: ServiceHealth, silent_s: float, leader: str | None) -> ServiceView:
    state = "standby" if service == "scheduler" and health.process != leader else "running"
    if silent_s > SILENT_S:
        state = "silent"
    return ServiceView.model_validate(asdict(health) | {"service": service, "state": state, "silent_s": silent_s})


class LoadView(ResponseModel):
    """The cell's load over the last 30 s, from its scheduler. None: no data."""

    t_s: float  # Unix time, seconds
    rps: float | None = None  # arrivals per second
    slo_attainment: float | None = None  # 0 to 1
    mean_threshold: float | None = None  # weighted by unmasked tokens
    latency_p50_ms: Ms | None = Field(default=None, validation_alias="latency_p50_s")
    latency_p99_ms: Ms | None = Field(default=None, validation_alias="latency_p99_s")
    tokens_per_s: float | None = None  # unmasked tokens
    running: int | None = None  # requests on instances
    waiting: int | None = None  # requests that no instance has room for
    infeasible: int | None = None  # requests whose SLO no threshold meets
    kv_cache_use: float | None = None  # share of the KV caches in use; None: no instance has one
    prefix_hit_rate: float | None = None  # of all instances, as in InstanceView


class InstanceView(ResponseModel):
    """One instance. Its load is None if no scheduler leads."""

    id: str = Field(validation_alias="instance_id")
    state: str  # starting, ready, draining or quarantined
    quarantine: str | None  # why it is quarantined
    tp_degree: int
    gpus: list[int]  # numbers on its node; empty on a CPU
    device: str
    requests: int | None  # requests placed on it
    max_requests: int = Field(validation_alias="max_batch_requests")  # maximum per batch
    tokens: int | None  # prompt and output tokens of its requests
    max_tokens: int = Field(validation_alias="max_batch_tokens")  # maximum per batch
    step_latency_ms: float | None  # latency of a recompute step of all its requests
    memory_bytes: int  # in use: of its first GPU, or on a CPU by its process; 0: unknown
    max_memory_bytes: int  # of that GPU, or of the machine; 0: unknown
    cache_tokens: int = Field(validation_alias="used_cache_tokens")  # in its KV cache
    max_cache_tokens: int = Field(validation_alias="cache_tokens")  # that its KV cache has room for; 0: it has none
    prefix_tokens: int = Field(validation_alias="used_prefix_tokens")  # in its prefix cache
    max_prefix_tokens: int = Field(validation_alias="prefix_tokens")  # that this has room for; 0: there is none
    prefix_hit_rate: float | None  # share of the tokens looked for in its prefix cache; None: it has none, or none yet


class NodeView(ResponseModel):
    name: str
    instances: list[InstanceView]


class StreamView(ResponseModel):
    """A stream or bucket of the bus that refuses messages when it is full."""

    name: str
    messages: int
    bytes: int
    max_bytes: int  # 0: no limit


class StorageView(ResponseModel):
    problem: str | None  # why it stores no message
    free_bytes: int | None  # on its disk; None: unknown
    streams: list[StreamView]


class ClusterView(ResponseModel):
    cell: str
    model: str
    policy: str | None  # None: no scheduler leads
    ready: bool
    reason: str | None  # why it is not ready
    slack: float | None  # free share of the cell; 0 and below: full. None: no scheduler leads
    nodes: list[NodeView]
    services: list[ServiceView]
    storage: StorageView | None = None
    trace_url: str | None = None  # address of a trace's page, with {trace_id}


class Update(ResponseModel):
    """One event of GET /events."""

    loads: list[LoadView]  # since the previous event; in the first event the last minutes
    cluster: ClusterView
    ended: int  # number of changes of the list of finished requests
    plans: int  # number of plan messages received


def load_view(stats: SchedulerStats, instances: Sequence[Instance], received_s: float) -> LoadView:
    """`received_s` is Unix time."""
    cached, room = (sum(getattr(each, name) for each in instances) for name in ("used_cache_tokens", "cache_tokens"))
    hits, wanted = (sum(getattr(each, name) for each in instances) for name in ("cached_tokens", "wanted_tokens"))
    more = {
        "t_s": received_s,
        "running": stats.active - stats.deferred,
        "waiting": stats.deferred + stats.waiting,
        "kv_cache_use": cached / room if room else None,
        "prefix_hit_rate": hits / wanted if wanted else None,
    }
    return LoadView.model_validate(asdict(stats) | more)


def storage_view(storage: Storage) -> StorageView:
    streams = [
        StreamView(name=name, messages=of.state.messages, bytes=of.state.bytes, max_bytes=max(of.config.max_bytes, 0))
        for name, of in storage.streams.items()
    ]
    return StorageView(problem=storage.problem, free_bytes=storage.free_bytes, streams=streams)


def node_views(instances: Iterable[Instance], loads: Iterable[InstanceLoad]) -> list[NodeView]:
    """The nodes that have instances, sorted by name."""
    load_by_id = {load.instance_id: load for load in loads}
    instances = sorted(instances, key=lambda instance: (instance.node, instance.gpus, instance.instance_id))
    return [
        NodeView(name=name, instances=[_instance_view(each, load_by_id.get(each.instance_id)) for each in on_node])
        for name, on_node in groupby(instances, key=lambda instance: instance.node)
    ]


def _instance_view(instance: Instance, load: InstanceLoad | None) -> InstanceView:
    """The load replaces the instance's own number of requests."""
    more = {
        "state": instance.state.value,
        "quarantine": instance.quarantine or None,
        "requests": load.requests if load else None,
        "tokens": load.tokens if load else None,
        "step_latency_ms": load.step_latency_s * 1000 if load else None,
        "prefix_hit_rate": instance.cached_tokens / instance.wanted_tokens if instance.wanted_tokens else None,
    }
    return InstanceView.model_validate(asdict(instance) | more)
