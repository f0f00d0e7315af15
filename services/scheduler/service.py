"""The loop around the core: messages in, a cycle, its commands out."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from nats.aio.msg import Msg

from services.scheduler import events as ev
from services.scheduler.core import SchedulerCore
from services.scheduler.io.event_queue import EventQueue
from services.scheduler.io.outcome_store import OutcomeStore
from services.scheduler.io.predictor_client import PredictorClient
from services.scheduler.monitoring.metrics import SchedulerMetrics
from services.scheduler.monitoring.stats_window import StatsWindow
from services.scheduler.monitoring.tracing import record_request
from shared.background import DeferredTasks
from shared.bus.client import Bus, last_token, try_decode
from shared.bus.subjects import result_consumer
from shared.messages.requests import Cancel
from shared.messages.stats import STATS_S
from shared.messages.steps import StepResults

log = structlog.get_logger(__name__)

TICK_S = 0.5  # a cycle at least so often, for steps that time out
CLOCKS_DIFFER = timedelta(seconds=5)  # at most, between this machine and the bus; a result too many is dropped


class SchedulerService:
    """Runs one core on one bus."""

    def __init__(
        self,
        bus: Bus,
        core: SchedulerCore,
        inbox: EventQueue,
        outcomes: OutcomeStore,
        predictions: PredictorClient,
        measures: StatsWindow,
        metrics: SchedulerMetrics,
        deferred: DeferredTasks,
    ) -> None:
        self._bus = bus
        self._core = core
        self._inbox = inbox
        self._outcomes = outcomes
        self._predictions = predictions
        self._measures = measures
        self._metrics = metrics
        self._deferred = deferred

    async def take_results(self, epoch: int) -> None:
        """Take the step results of an epoch that begins now, until cancelled."""
        consumer = result_consumer(epoch, datetime.now(UTC) - CLOCKS_DIFFER)
        await self._bus.run_consumer(self._bus.subjects.stream("STEP_RESULTS"), consumer, self._on_results)

    async def take_cancels(self) -> None:
        """Subscribe to cancels."""
        await self._bus.nc.subscribe(self._bus.subjects.cancel("*"), cb=self._on_cancel)

    async def run(self, stop: asyncio.Event) -> None:
        """Receive, decide, do, until `stop`; requests that are not done then are delivered again to the next."""
        while not stop.is_set():
            events = await self._inbox.take(within_s=TICK_S)
            now_s, started_s = time.time(), time.perf_counter()
            commands = self._core.cycle(events, now_s)
            cycle_s = time.perf_counter() - started_s
            for command in commands:
                if is_awaited(command):
                    await self._do(command)
                else:
                    self._deferred.defer(partial(self._do, command))
            self._deferred.defer(partial(self._count, events, commands, now_s, cycle_s))

    async def tell_stats(self) -> None:
        """Say once a second how it goes, until cancelled."""
        while True:
            await asyncio.sleep(STATS_S)
            stats = self._measures.stats(time.time())
            self._metrics.told(stats)
            if self._bus.nc.is_connected:  # else it would be told late, if the client had room for it
                await self._bus.publish(self._bus.subjects.stats("scheduler"), stats)

    def _count(self, events: Sequence[ev.Event], commands: Sequence[ev.Command], now_s: float, cycle_s: float) -> None:
        self._measures.note(events, commands, now_s, cycle_s)
        self._metrics.cycled(cycle_s)
        for command in commands:
            if isinstance(command, ev.FinishRequest):
                record_request(command)
                self._metrics.ended(command)

    async def _do(self, command: ev.Command) -> None:
        subjects = self._bus.subjects
        match command:
            case ev.SendJobs(instance_id, jobs):
                await self._bus.publish(subjects.steps(instance_id), jobs)
            case ev.SendProgress(request_id, progress):
                await self._bus.publish(subjects.progress(request_id), progress)
            case ev.FinishRequest():
                self._outcomes.finish(command)
            case ev.SaveCheckpoint(request_id, checkpoint):
                await self._bus.publish(subjects.checkpoints(request_id), checkpoint)
            case ev.RequestEstimates():
                self._predictions.ask(command)
            case ev.Acknowledge(delivery):
                await delivery.msg.ack()

    async def _on_results(self, msg: Msg) -> None:
        results = try_decode(msg, StepResults)
        if results is not None:
            if results.sent_s:
                self._metrics.results_came(time.time() - results.sent_s)
            self._inbox.put(ev.StepResultsReceived(results))

    async def _on_cancel(self, msg: Msg) -> None:
        if not msg.data or try_decode(msg, Cancel) is not None:  # nothing is as good as {}
            self._inbox.put(ev.RequestCancelled(last_token(msg.subject)))


def is_awaited(command: ev.Command) -> bool:
    """Whether an instance or a client waits for it; not for what an instance is only to forget of late."""
    match command:
        case ev.SendJobs(_, jobs):
            return len(jobs.tickets) > 0 or jobs.forget_below > 0  # which must not overtake what it does not mean
        case ev.FinishRequest() | ev.SendProgress():
            return True
        case _:
            return False
