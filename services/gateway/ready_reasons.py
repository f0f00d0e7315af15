"""Why a cell cannot serve requests, for `/ready`, the console, `dilaserve doctor` and the alerts. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from shared.bus.watch import StreamState
from shared.messages.stats import SchedulerStats

LEADERS_S = 60.0  # window in which new leaders are counted
MAX_LEADERS = 3  # new leaders in that window; more are a crash loop
MIN_STALL_S = 5.0  # time without a step that is always accepted
STALL_STEPS = 20  # accepted time without a step, in steps of the slowest instance
UNRECEIVED_S = 10.0  # time that requests may be on the bus before the scheduler has them
FULL_SHARE = 0.9  # of its limit, from which a stream counts as full
MIN_FREE_BYTES = 512 << 20  # on the disk of the bus
DRAINED = "the cell drains: it finishes its requests and accepts no more"
NEEDED = {"REQUESTS": "unfinished requests", "OUTCOMES": "outcomes"}  # streams that every request needs
CODES = (
    *("draining", "bus", "storage", "disk", "full", "scheduler", "drained", "restarts"),
    *("instances", "stalled", "queue", "unreceived"),
)


@dataclass(frozen=True, slots=True)
class Reason:
    """`code` is one of CODES; `text` is one line for an operator."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The last look at the bus's storage."""

    problem: str | None = "it has not been checked yet"  # why the last write failed; None: it was stored
    streams: Mapping[str, StreamState] = field(default_factory=dict)  # by kind
    free_bytes: int | None = None  # on the disk of the bus; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """All that decides whether requests can be served."""

    draining: bool = False
    connected: bool = True
    storage: Storage = Storage(problem=None)
    stats: SchedulerStats | None = None  # of the leading scheduler; None: none leads
    leaders: int = 0  # that began in the last LEADERS_S
    ready_instances: int = 0
    unreceived_s: float = 0.0  # time for which the bus has held requests and the scheduler none
    max_queue_s: float = inf  # accepted age of a request that no instance runs and whose SLO has passed


def reasons(state: CellState) -> list[Reason]:
    """Why no request can be served; empty if requests can be."""
    if state.draining:
        return [Reason("draining", "the gateway is shutting down")]
    if not state.connected:
        return [Reason("bus", "the bus is not connected")]
    return [*_storage(state.storage), *_scheduler(state), *_instances(state)]


def full_streams(storage: Storage) -> Iterator[str]:
    """One line for each stream that every request needs and that is full."""
    for kind, content in NEEDED.items():
        if (stream := storage.streams.get(kind)) is None:
            continue
        stored, limits = stream.state, stream.config
        if _is_full(stored.bytes, limits.max_bytes):
            yield f"the bus stores {_size(stored.bytes)} of {content}, of at most {_size(limits.max_bytes)}"
        if _is_full(stored.messages, limits.max_msgs):
            yield f"the bus stores {stored.messages:,} {content}, of at most {limits.max_msgs:,}"


def _is_full(stored: int, limit: int) -> bool:
    return 0 < limit * FULL_SHARE <= stored


def _storage(storage: Storage) -> Iterator[Reason]:
    if storage.problem is not None:
        yield Reason("storage", f"the bus stores no message: {storage.problem}")
    if storage.free_bytes is not None and storage.free_bytes < MIN_FREE_BYTES:
        yield Reason("disk", f"the disk of the bus has {_size(storage.free_bytes)} left")
    for text in full_streams(storage):
        yield Reason("full", text)


def _scheduler(state: CellState) -> Iterator[Reason]:
    if state.stats is None:
        yield Reason("scheduler", "no scheduler leads")
    elif state.stats.draining:
        yield Reason("drained", DRAINED)
    elif state.leaders > MAX_LEADERS:
        yield Reason("restarts", f"the scheduler has started {state.leaders} times in the last {LEADERS_S:.0f} s")


def _instances(state: CellState) -> Iterator[Reason]:
    if not state.ready_instances:
        yield Reason("instances", "no instance is ready")
        return
    if (stats := state.stats) is None:
        return
    if not stats.instances:
        yield Reason("instances", "the scheduler has refused every ready instance; its log has the reasons")
    step_s = max((instance.step_latency_s for instance in stats.instances), default=0.0)
    if stats.stalled_s > max(MIN_STALL_S, STALL_STEPS * step_s):
        yield Reason("stalled", f"no step has ended for {stats.stalled_s:.0f} s, with {stats.active} requests active")
    if stats.oldest_queued_s > state.max_queue_s:
        yield Reason("queue", f"a request has waited {stats.oldest_queued_s:.0f} s for an instance")
    if state.unreceived_s > UNRECEIVED_S:
        text = f"the bus has had requests for {state.unreceived_s:.0f} s that the scheduler does not have"
        yield Reason("unreceived", text)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
