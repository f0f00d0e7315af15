"""What the console shows, kept by ear: how requests end, second by second. Holds nothing that matters."""

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

from services.gateway.cluster import nodes
from services.gateway.instances import Instances
from services.gateway.readiness import Readiness
from services.gateway.traffic import Traffic, ended, replay
from services.gateway.views import ClusterView, Load, Update
from shared.bus import Bus, read_or_none
from shared.errors import RetryLater
from shared.messages.requests import Outcome

log = structlog.get_logger(__name__)

HISTORY_S = 300  # of the charts
RECENT = 500  # requests remembered, and read from the stream at the start


class Watch:
    """The cell's recent past and present."""

    def __init__(self, cell: str, model_name: str, instances: Instances, readiness: Readiness) -> None:
        self._cell = cell
        self._model_name = model_name
        self._instances = instances
        self._readiness = readiness
        self._traffic = Traffic()
        self._loads: deque[Load] = deque(maxlen=HISTORY_S)
        self._ended = 0
        self._plans = 0
        self._ticked = asyncio.Event()
        self._closed = False
        self._recent: dict[str, tuple[float, Outcome]] = {}  # by id; when it ended; the latest comes last

    async def listen(self, bus: Bus) -> None:
        """Hear every outcome from now on, and read those of the recent past."""
        await bus.nc.subscribe(bus.subjects.outcomes("*"), cb=self._hear_outcome)
        await bus.nc.subscribe(bus.subjects.plans("*"), cb=self._hear_plan)
        try:
            past = await _last_outcomes(bus, RECENT)
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            log.warning("the console begins without a past", error=repr(error))
        else:
            self._remember(past)

    def recent(self, limit: int) -> list[Outcome]:
        """The requests that ended last, the latest first."""
        return [outcome for _, outcome in islice(reversed(self._recent.values()), limit)]

    async def run(self) -> None:
        """Note the load each second, until cancelled."""
        while True:
            self._loads.append(self._traffic.load(time.time()))
            self._ticked.set()
            self._ticked = asyncio.Event()
            await asyncio.sleep(1)

    def close(self) -> None:
        """End `updates`."""
        self._closed = True
        self._ticked.set()

    async def updates(self) -> AsyncIterator[Update]:
        """The last minutes, then an update a second, until `close`."""
        loads = list(self._loads)
        while not self._closed:
            yield Update(loads=loads, cluster=self.cluster(), ended=self._ended, plans=self._plans)
            await self._ticked.wait()
            loads = [self._loads[-1]]

    def cluster(self) -> ClusterView:
        """The cell now."""
        try:
            self._readiness.check()
            reason = None
        except RetryLater as error:
            reason = str(error)
        return ClusterView(
            cell=self._cell,
            model=self._model_name,
            ready=reason is None,
            reason=reason,
            nodes=nodes(self._instances.known(), {}),
        )

    def _remember(self, past: dict[str, tuple[float, Outcome]]) -> None:
        """Put the past before what has been heard meanwhile, and the charts with it."""
        self._recent = {**past, **self._recent}
        requests = [request for at_s, outcome in self._recent.values() if (request := ended(outcome, at_s))]
        self._traffic, loads = replay(sorted(requests, key=lambda request: request.at_s), time.time(), HISTORY_S)
        self._loads = deque(loads, maxlen=HISTORY_S)

    async def _hear_outcome(self, msg: Msg) -> None:
        outcome, now_s = read_or_none(msg, Outcome), time.time()
        if outcome is None or outcome.request_id in self._recent:  # it may come twice
            return
        self._ended += 1
        self._recent[outcome.request_id] = (now_s, outcome)
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        request = ended(outcome, now_s)
        if request is not None:
            self._traffic.add(request)

    async def _hear_plan(self, _msg: Msg) -> None:
        self._plans += 1


async def _last_outcomes(bus: Bus, count: int) -> dict[str, tuple[float, Outcome]]:
    """The last of the stream by request, each with when it was stored (Unix time, s); the latest comes last."""
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
    found = [(msg.metadata.timestamp.timestamp(), read_or_none(msg, Outcome)) for msg in msgs]
    return {outcome.request_id: (at_s, outcome) for at_s, outcome in found if outcome is not None}
