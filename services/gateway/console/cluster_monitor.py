"""What the console shows, kept by ear: what the scheduler says each second, how requests end, what was planned."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from services.gateway.console.cluster_view import load_of, nodes
from services.gateway.console.console_models import ClusterView, LoadView, Update
from services.gateway.readiness import Readiness
from shared.bus.client import Bus, try_decode
from shared.bus.instance_watch import InstanceWatch
from shared.errors import RetryLater
from shared.messages.requests import Outcome
from shared.messages.stats import STATS_S, SchedulerStats

log = structlog.get_logger(__name__)

HISTORY = 300  # loads remembered, one a second
RECENT = 500  # requests remembered, and read from the stream at the start
SILENT_S = 3 * STATS_S  # a scheduler that has said nothing for so long does not lead


class ClusterMonitor:
    """The cell's recent past and present."""

    def __init__(self, cell: str, model_name: str, instances: InstanceWatch, readiness: Readiness) -> None:
        self._cell = cell
        self._model_name = model_name
        self._instances = instances
        self._readiness = readiness
        self._stats: SchedulerStats | None = None  # the last
        self._heard_s = 0.0  # when it came, Unix time
        self._loads: deque[LoadView] = deque(maxlen=HISTORY)
        self._recent: dict[str, Outcome] = {}  # by id; the latest to end comes last
        self._ended = 0
        self._plans = 0
        self._ticked = asyncio.Event()
        self._closed = False

    async def listen(self, bus: Bus) -> None:
        """Hear all from now on, and read how the latest requests ended."""
        await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=self._hear_stats)
        await bus.nc.subscribe(bus.subjects.outcomes("*"), cb=self._hear_outcome)
        await bus.nc.subscribe(bus.subjects.plans("*"), cb=self._hear_plan)
        try:
            self._recent = {**await _last_outcomes(bus, RECENT), **self._recent}
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            log.warning("the console begins without past requests", error=repr(error))

    async def run(self) -> None:
        """Tell those who follow `updates` each second, until cancelled."""
        while True:
            if self.stats is None:
                self._loads.append(LoadView(t_s=time.time()))  # a gap in the charts
            self._ticked.set()
            self._ticked = asyncio.Event()
            await asyncio.sleep(STATS_S)

    def close(self) -> None:
        """End `updates`."""
        self._closed = True
        self._ticked.set()

    @property
    def stats(self) -> SchedulerStats | None:
        """What the scheduler says of itself; None when none leads."""
        return self._stats if time.time() - self._heard_s < SILENT_S else None

    def recent(self, limit: int) -> list[Outcome]:
        """The requests that ended last, the latest first."""
        return list(islice(reversed(self._recent.values()), limit))

    def cluster(self) -> ClusterView:
        """The cell now."""
        try:
            self._readiness.check()
            reason = None
        except RetryLater as error:
            reason = str(error)
        stats = self.stats
        return ClusterView(
            cell=self._cell,
            model=self._model_name,
            policy=stats.policy if stats else None,
            ready=reason is None,
            reason=reason,
            nodes=nodes(self._instances.instances(), stats.instances if stats else ()),
        )

    async def updates(self) -> AsyncIterator[Update]:
        """The last minutes, then an update a second, until `close`."""
        told_s = 0.0
        while not self._closed:
            loads = [load for load in self._loads if load.t_s > told_s]
            told_s = loads[-1].t_s if loads else told_s
            yield Update(loads=loads, cluster=self.cluster(), ended=self._ended, plans=self._plans)
            await self._ticked.wait()

    async def _hear_stats(self, msg: Msg) -> None:
        stats = try_decode(msg, SchedulerStats)
        if stats is not None:
            self._stats, self._heard_s = stats, time.time()
            self._loads.append(load_of(stats, self._heard_s))

    async def _hear_outcome(self, msg: Msg) -> None:
        outcome = try_decode(msg, Outcome)
        if outcome is None or outcome.request_id in self._recent:  # it may come twice
            return
        self._ended += 1
        self._recent[outcome.request_id] = outcome
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    async def _hear_plan(self, _msg: Msg) -> None:
        self._plans += 1


async def _last_outcomes(bus: Bus, count: int) -> dict[str, Outcome]:
    """The last of the stream by request, the latest last."""
    stream = bus.subjects.stream("OUTCOMES")
    await bus.wait_for_stream(stream)
    last = (await bus.js.stream_info(stream)).state.last_seq
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=max(1, last - count + 1),
        ack_policy=AckPolicy.NONE,
        mem_storage=True,
        inactive_threshold=10,
    )
    past = await bus.js.pull_subscribe(bus.subjects.outcomes("*"), stream=stream, config=config)
    pending = (await past.consumer_info()).num_pending or 0
    msgs = await past.fetch(pending, timeout=5) if pending else []
    await past.unsubscribe()
    outcomes = [outcome for msg in msgs if (outcome := try_decode(msg, Outcome))]
    return {outcome.request_id: outcome for outcome in outcomes}
