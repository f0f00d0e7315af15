"""The scheduler's main loop: it receives messages, runs a cycle, and executes its commands."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from msgspec.structs import replace
from nats.aio.msg import Msg

from services.scheduler import events as ev
from services.scheduler.core import SchedulerCore
from services.scheduler.io.drain_watch import DrainWatch
from services.scheduler.io.event_queue import EventQueue
from services.scheduler.io.lease import Lease
from services.scheduler.io.outcome_store import OutcomeStore
from services.scheduler.io.predictor_client import PredictorClient
from services.scheduler.monitoring.metrics import SchedulerMetrics
from services.scheduler.monitoring.stats_window import StatsWindow
from services.scheduler.monitoring.tracing import ScheduleSpans
from shared.background import DeferredTasks
from shared.bus.client import Bus, try_decode
from shared.bus.clock import BusClock
from shared.bus.errors import BUS_ERRORS
from shared.bus.subjects import result_consumer
from shared.messages.stats import STATS_S
from shared.messages.steps import StepResults
from shared.tasks import pause, run_until_stopped

log = structlog.get_logger(__name__)

MAX_CYCLE_INTERVAL_S = 0.5  # maximum time between two cycles, for step timeouts
MIN_CYCLE_INTERVAL_S = 0.002  # with lookahead: under load a cycle takes the results of several instances, at less cost
RESULTS_MARGIN = timedelta(seconds=5)  # results from before the epoch that are received too; the core drops them


@dataclass(slots=True)
class SchedulerService:
    """Runs one core on one bus."""

    _bus: Bus
    _clock: BusClock
    _lease: Lease
    _core: SchedulerCore
    _queue: EventQueue
    _outcomes: OutcomeStore
    _predictor: PredictorClient
    _drain: DrainWatch
    _stats: StatsWindow
    _metrics: SchedulerMetrics
    _deferred: DeferredTasks
    _spans: ScheduleSpans = field(default_factory=ScheduleSpans)

    async def receive_results(self, epoch: int) -> None:
        """Receive the step results of an epoch that begins now, until cancelled."""
        began = datetime.fromtimestamp(self._clock.now_s(), UTC)
        consumer = result_consumer(epoch, began - RESULTS_MARGIN)
        await self._bus.run_consumer(self._bus.subjects.stream("STEP_RESULTS"), consumer, self._on_results)

    async def run(self, stop: asyncio.Event) -> None:
        """Run cycles until `stop`; the bus redelivers unfinished requests to the next scheduler.

        With lookahead an instance has its next batch already, so that it does not wait while a cycle does. Events that
        arrive later than MIN_CYCLE_INTERVAL_S after the last ones are taken at once.
        """
        interval_s = MIN_CYCLE_INTERVAL_S if self._core.settings.lookahead else 0.0
        while not stop.is_set():
            events = await self._queue.get_all(MAX_CYCLE_INTERVAL_S, interval_s)
            if not await self._leads(stop):
                return
            for event in events:
                if isinstance(event, ev.RequestArrived):
                    self._spans.arrived(event)
            now_s, started_s = self._clock.now_s(), time.perf_counter()
            commands = self._core.cycle(events, now_s)
            cycle_s = time.perf_counter() - started_s
            for command in commands:
                if not is_urgent(command):
                    self._deferred.defer(partial(self._execute, command))
                elif await self._leads(stop):
                    await self._execute_now(command)
                else:
                    return
            self._deferred.defer(partial(self._record, commands, now_s, cycle_s))

    async def _leads(self, stop: asyncio.Event) -> bool:
        """Wait until a lease that may have expired is renewed, such as after a stop of this process. Returns: False if
        `stop` is set before."""
        if not self._lease.may_have_expired:
            return True
        await run_until_stopped(stop, self._lease.confirm())
        return not stop.is_set()

    async def publish_stats(self) -> None:
        """Publish the statistics once per second, until cancelled."""
        while True:
            await pause(STATS_S)
            await self._lease.confirm()
            stats = replace(
                self._stats.stats(self._clock.now_s()), draining=self._drain.is_draining, leader=self._lease.holder
            )
            self._metrics.last = stats
            if self._bus.nc.is_connected:  # otherwise the client would buffer the message and send it late
                await self._bus.publish(self._bus.subjects.stats("scheduler"), stats)

    def _record(self, commands: Sequence[ev.Command], now_s: float, cycle_s: float) -> None:
        self._stats.record_cycle(commands, now_s, cycle_s)
        self._metrics.observe("cycle_seconds", cycle_s)
        for command in commands:
            if isinstance(command, ev.FinishRequest):
                self._spans.finished(command)
                self._metrics.observe_finished(command)

    async def _execute_now(self, command: ev.Command) -> None:
        """A step that the bus does not take times out, or runs again after a reconnect."""
        try:
            await self._execute(command)
        except BUS_ERRORS as error:
            log.warning("command not sent", command=type(command).__name__, error=repr(error))

    async def _execute(self, command: ev.Command) -> None:
        subjects = self._bus.subjects
        match command:
            case ev.SendJobs(instance_id, jobs):
                await self._bus.publish(subjects.steps(instance_id), self._spans.sent(instance_id, jobs))
            case ev.SendProgress(request_id, progress):
                await self._bus.publish(subjects.progress(request_id), progress)
            case ev.FinishRequest():
                self._outcomes.finish(command)
            case ev.SaveCheckpoint(request_id, checkpoint):
                await self._lease.publish(subjects.checkpoints(request_id), checkpoint)
            case ev.RequestEstimates():
                self._predictor.request(command)

    async def _on_results(self, msg: Msg) -> None:
        results = try_decode(msg, StepResults)
        if results is not None:
            if results.sent_s:  # the clocks of the two machines may differ
                self._metrics.observe("results_delay_seconds", max(0.0, time.time() - results.sent_s))
            self._queue.put(results)
            self._spans.received(results)


def is_urgent(command: ev.Command) -> bool:
    """Whether an instance, a client or the next decision waits for the command. An instance receives all its messages
    in order: drops sent late would remove a request that is back with the same ticket."""
    return not isinstance(command, ev.SaveCheckpoint) or command.is_urgent
