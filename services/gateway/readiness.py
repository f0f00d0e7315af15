"""Whether requests can be served, and whether the gateway accepts them, with the reasons if not.

A request that is accepted while the scheduler restarts or instances change waits on the bus. So fewer reasons refuse a
request than end readiness.
"""

import asyncio
import shutil
import time
from collections import deque
from contextlib import suppress
from math import inf

import structlog
from nats.aio.msg import Msg

from services.gateway.bus_connection import PROBE_S, BusConnection, limited_streams
from services.gateway.ready_reasons import DRAINED, LEADERS_S, CellState, Reason, Storage, full_streams, reasons
from services.gateway.routing import CellLoad
from shared.bus.client import Bus, try_decode
from shared.bus.errors import bus_errors
from shared.bus.instance_watch import InstanceWatch
from shared.bus.watch import Look
from shared.errors import RetryLater, StorageFull
from shared.messages.instances import Instance, InstanceState
from shared.messages.plans import PlanRecord, PlanState
from shared.messages.stats import STATS_S, SchedulerStats

log = structlog.get_logger(__name__)

FAILURE_S = 30.0  # for which a request that the bus did not store is a problem, unless a later one was stored
STATS_TIMEOUT_S = 5 * STATS_S  # silence after which no scheduler leads; a standby takes over sooner
# Silence after which a plan counts as abandoned. The plan that replaces another one is reported after that one's end
PLAN_TIMEOUT_S = {PlanState.RUNNING: 600.0, PlanState.REPLACED: 30.0}


class Readiness:
    """Collects the state of the cell. Reading it takes no message, so that load balancers may ask often."""

    def __init__(self, connection: BusConnection, model_name: str, *, max_queue_s: float, store_dir: str) -> None:
        """`max_queue_s`: see CellState; `store_dir`: the directory of NATS's store, if this machine has it; empty: its
        disk is unknown."""
        self.instances = InstanceWatch(accept=self._serves)
        self.draining = False
        self.storage = Storage()
        self._store_dir = store_dir
        self._connection = connection
        self._model_name = model_name
        self._rejected = set[str]()  # models of instances that were not accepted
        self._max_queue_s = max_queue_s
        self._plan_until_s = 0.0  # this and the following are times of the monotonic clock; until then a plan runs
        self._stats: SchedulerStats | None = None
        self._stats_s = 0.0  # when the last statistics arrived
        self._sent = 0  # requests that this gateway has sent to the cell since then
        self._leaders: deque[float] = deque()  # when each of the last leaders was first seen
        self._unreceived_s: float | None = None  # since then the bus has requests and the scheduler none

    def _serves(self, instance: Instance) -> bool:
        name = instance.model.name
        if name != self._model_name and name not in self._rejected:
            self._rejected.add(name)
            log.warning("instance rejected", reason=f"it serves the model {name}, not {self._model_name}")
        return name == self._model_name

    async def subscribe(self, bus: Bus) -> None:
        await self.instances.start(bus)
        await bus.nc.subscribe(bus.subjects.plans("*"), cb=self._receive_plan)

    def receive_stats(self, stats: SchedulerStats) -> None:
        now_s = time.monotonic()
        if self._stats is None or stats.epoch != self._stats.epoch:
            self._leaders.append(now_s)
        self._stats, self._stats_s, self._sent = stats, now_s, 0

    def count_sent(self) -> None:
        """Count a request that is sent to the cell."""
        self._sent += 1

    def reasons(self) -> list[Reason]:
        """Why requests cannot be served; empty if they can be."""
        now_s = time.monotonic()
        while self._leaders and self._leaders[0] < now_s - LEADERS_S:
            self._leaders.popleft()
        state = CellState(
            draining=self.draining,
            connected=self._connection.is_connected,
            storage=self.storage,
            stats=self.stats,
            leaders=len(self._leaders),
            ready_instances=self._num_ready(),
            unreceived_s=0.0 if self._unreceived_s is None else now_s - self._unreceived_s,
            max_queue_s=self._max_queue_s,
        )
        return reasons(state)

    def problem(self) -> str:
        """Why requests cannot be served, in one line; empty if they can be."""
        return "; ".join(reason.text for reason in self.reasons())

    @property
    def stats(self) -> SchedulerStats | None:
        """The leading scheduler's last statistics; None if none leads."""
        return self._stats if time.monotonic() - self._stats_s <= STATS_TIMEOUT_S else None

    def load(self) -> CellLoad:
        """Without a leading scheduler the cell counts as full: it accepts requests, and serves them later."""
        try:
            self.check_accepts()
        except RetryLater:
            return CellLoad(accepts=False)
        if (stats := self.stats) is None:
            return CellLoad(sent=self._sent)
        return CellLoad(slack=stats.slack, requests=stats.active + stats.waiting, sent=self._sent)

    def check_accepts(self) -> None:
        """Raises: RetryLater with the reason if no new request can be accepted; else as `check_serves`."""
        self.check_serves()
        if self._stats is not None and self._stats.draining:
            raise RetryLater(DRAINED)

    def check_serves(self) -> None:
        """Raises: RetryLater with the reason if no request can be served, also none that the cell has; StorageFull as
        `check_storage`."""
        if self.draining:
            raise RetryLater("the gateway is shutting down")
        _ = self._connection.bus
        if not self._num_ready() and time.monotonic() >= self._plan_until_s:
            raise RetryLater("no instance is ready")
        self.check_storage()

    def check_storage(self) -> None:
        """Raises: StorageFull if a stream that every request needs is full: the last tenth of the outcomes is for the
        requests that are accepted already."""
        for text in full_streams(self.storage):
            raise StorageFull(text)

    def _num_ready(self) -> int:
        return sum(instance.state is InstanceState.READY for instance in self.instances.instances())

    async def _receive_plan(self, msg: Msg) -> None:
        plan = try_decode(msg, PlanRecord)
        if plan is not None and plan.state is not PlanState.STAYED:  # a decision to stay ends no running plan
            self._plan_until_s = time.monotonic() + PLAN_TIMEOUT_S.get(plan.state, 0.0)

    async def probe(self, bus: Bus, look: Look) -> None:
        """Store a message, and note the storage. NATS may refuse writes to one stream only, so that a request that it
        did not store counts too. A stream that did not answer the look keeps its last state."""
        try:
            with bus_errors("store a probe"):
                async with asyncio.timeout(PROBE_S):
                    await bus.js.publish(bus.subjects.probes, timeout=PROBE_S)
            failed_s, failure = bus.store_failure or (-inf, "")
            problem = failure if time.monotonic() - failed_s < FAILURE_S else None
        except RetryLater as error:
            problem = str(error)
        kinds, free_bytes = limited_streams(bus.subjects), None
        streams = {kinds[name]: state for name, state in look.streams.items() if name in kinds}
        if self._store_dir:
            with suppress(OSError):
                free_bytes = shutil.disk_usage(self._store_dir).free
        self.storage = Storage(problem=problem, streams={**self.storage.streams, **streams}, free_bytes=free_bytes)
        requests, stats = self.storage.streams.get("REQUESTS"), self._stats
        if requests is None or not requests.state.messages or stats is None or stats.active + stats.waiting:
            self._unreceived_s = None
        elif self._unreceived_s is None:
            self._unreceived_s = time.monotonic()
