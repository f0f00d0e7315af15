"""Caches the console's state from bus messages: the scheduler's load, outcomes of requests, the number of plans."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator

import structlog
from msgspec.structs import replace
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy

from services.gateway.console.cluster_view import (
    ClusterView,
    LoadView,
    ServiceWatch,
    Update,
    load_view,
    node_views,
    storage_view,
)
from services.gateway.readiness import STATS_TIMEOUT_S, Readiness
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus, try_decode
from shared.bus.errors import BUS_ERRORS
from shared.bus.stream_reader import read_stream
from shared.messages.plans import ReconfiguratorStats
from shared.messages.requests import Outcome
from shared.messages.stats import STATS_S, SchedulerStats
from shared.tasks import pause

OLDER_INTERVAL_S = 10.0  # between two kept loads of the hour
MAX_RECENT_LOADS = 300  # one per second
MAX_HOUR = 360


class LoadHistory:
    def __init__(self) -> None:
        self._recent: deque[LoadView] = deque(maxlen=MAX_RECENT_LOADS)
        self._hour: deque[LoadView] = deque(maxlen=MAX_HOUR)  # one per OLDER_INTERVAL_S

    def add(self, load: LoadView) -> None:
        self._recent.append(load)
        if not self._hour or load.t_s >= self._hour[-1].t_s + OLDER_INTERVAL_S:
            self._hour.append(load)

    def after(self, t_s: float) -> list[LoadView]:
        """The loads after this Unix time in seconds, the oldest first."""
        began_s = self._recent[0].t_s if self._recent else 0.0
        older = [load for load in self._hour if t_s < load.t_s < began_s]
        return older + [load for load in self._recent if load.t_s > t_s]


log = structlog.get_logger(__name__)

MAX_RECENT = 2000  # outcomes kept, and read from the stream at the start
PREVIEW_LENGTH = 120  # characters of a kept text


class ClusterMonitor:
    def __init__(self, settings: GatewaySettings, model_name: str, readiness: Readiness) -> None:
        self._cell, self._trace_url = settings.cell, settings.trace_url
        self._model_name = model_name
        self._readiness = readiness
        self._reconfigurator: ReconfiguratorStats | None = None
        self._reconfigurator_s = 0.0  # time of the monotonic clock at which it was received
        self._offset_s = time.time() - time.monotonic()  # Unix time at which the monotonic clock was 0
        self._loads = LoadHistory()
        self._services = ServiceWatch()
        self._recent: dict[str, Outcome] = {}  # by request id, newest last
        self._ended = 0  # changes when the list does
        self._plans = 0
        self._tick = asyncio.Event()
        self._closed = False

    async def subscribe(self, bus: Bus) -> None:
        await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=self._receive_stats)
        await bus.nc.subscribe(bus.subjects.stats("reconfigurator"), cb=self._receive_reconfigurator)
        await self._services.subscribe(bus)
        await bus.nc.subscribe(bus.subjects.outcomes(">"), cb=self._receive_outcome)
        await bus.nc.subscribe(bus.subjects.plans("*"), cb=self._receive_plan)

    async def read_recent(self, bus: Bus) -> None:
        try:
            self._recent = {**await _read_outcomes(bus, MAX_RECENT), **self._recent}
        except BUS_ERRORS as error:
            log.warning("cannot read past requests for the console", error=repr(error))

    async def run(self) -> None:
        """Send an update to every reader of `updates` each second, until cancelled."""
        while True:
            if self._readiness.stats is None:
                self._loads.add(LoadView(t_s=self._now_s()))  # a gap in the charts
            self._tick.set()
            self._tick = asyncio.Event()
            await pause(STATS_S)

    def close(self) -> None:
        """End `updates`."""
        self._closed = True
        self._tick.set()

    @property
    def reconfigurator(self) -> ReconfiguratorStats | None:
        """None: no reconfigurator runs."""
        return self._reconfigurator if time.monotonic() - self._reconfigurator_s <= STATS_TIMEOUT_S else None

    def recent(self) -> Iterator[Outcome]:
        """The most recently finished requests, newest first, without the details of steps and with the beginning of
        their text."""
        return reversed(self._recent.values())

    def cluster(self) -> ClusterView:
        reason = self._readiness.problem() or None
        stats = self._readiness.stats
        return ClusterView(
            cell=self._cell,
            model=self._model_name,
            policy=stats.policy if stats else None,
            ready=reason is None,
            reason=reason,
            slack=stats.slack if stats else None,
            services=self._services.views(stats.leader if stats else None),
            storage=storage_view(self._readiness.storage),
            trace_url=self._trace_url or None,
            nodes=node_views(self._readiness.instances.instances(), stats.instances if stats else ()),
        )

    async def updates(self) -> AsyncIterator[Update]:
        """The last hour, of which the last minutes in full, then an update per second, until `close`."""
        sent_s = 0.0
        while not self._closed:
            loads = self._loads.after(sent_s)
            sent_s = loads[-1].t_s if loads else sent_s
            yield Update(loads=loads, cluster=self.cluster(), ended=self._ended, plans=self._plans)
            await self._tick.wait()

    def _now_s(self) -> float:
        """Unix time of a load, which increases also if the machine's clock is set back."""
        return self._offset_s + time.monotonic()

    async def _receive_stats(self, msg: Msg) -> None:
        if (stats := try_decode(msg, SchedulerStats)) is not None:
            self._readiness.receive_stats(stats)
            self._loads.add(load_view(stats, self._readiness.instances.instances(), self._now_s()))

    async def _receive_reconfigurator(self, msg: Msg) -> None:
        if (stats := try_decode(msg, ReconfiguratorStats)) is not None:
            self._reconfigurator, self._reconfigurator_s = stats, time.monotonic()

    async def _receive_outcome(self, msg: Msg) -> None:
        if (outcome := try_decode(msg, Outcome)) is None:
            return
        known = self._recent.get(outcome.request_id)
        if known is None:
            self._add(outcome)
        elif outcome.unverified and not known.unverified:  # any other duplicate may be one that the stream rejects
            self._recent[outcome.request_id] = replace(known, unverified=True)
            self._ended += 1

    def _add(self, outcome: Outcome) -> None:
        if len(self._recent) >= MAX_RECENT:
            oldest = next(iter(self._recent))
            if outcome.unverified and end_s(outcome) < end_s(self._recent[oldest]):  # it was listed before
                return
            del self._recent[oldest]
        self._recent[outcome.request_id] = _summary(outcome)
        self._ended += 1

    async def _receive_plan(self, _msg: Msg) -> None:
        self._plans += 1


async def _read_outcomes(bus: Bus, count: int) -> dict[str, Outcome]:
    """The last `count` outcomes of the stream by request id, newest last."""
    stream = bus.subjects.stream("OUTCOMES")
    last = (await bus.wait_for_stream(stream)).state.last_seq
    start = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": max(1, last - count + 1)}
    msgs = await read_stream(bus, stream, bus.subjects.outcomes(">"), **start)
    outcomes = [_summary(outcome) for msg in msgs if (outcome := try_decode(msg, Outcome))]
    return {outcome.request_id: outcome for outcome in sorted(outcomes, key=end_s)}  # a marked one is stored again


def end_s(outcome: Outcome) -> float:
    """The Unix time at which the request ended; its arrival if no step ran."""
    return outcome.arrival_s + (outcome.stats.latency_s if outcome.stats else 0.0)


def _summary(outcome: Outcome) -> Outcome:
    """The part of an outcome that a list shows: many are kept."""
    unlisted = {"token_ids": b"", "confidences": b"", "top_tokens": None, "decisions": None}
    return replace(outcome, text=outcome.text[:PREVIEW_LENGTH], **unlisted)
