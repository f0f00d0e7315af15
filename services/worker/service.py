"""The worker's main loop: step jobs from the bus to the engine, its results to the bus.

The engine runs in its own thread, one iteration after another while jobs wait. The event loop receives and publishes
messages at the same time.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, Literal

import structlog
from nats.aio.msg import Msg

from services.worker.engine.engine import Engine
from services.worker.engine.self_check import CanaryCheck, CanaryFault
from services.worker.engine.step_jobs import MessageDeduplicator, StepJob, read_jobs
from services.worker.engine.step_results import IterationResult
from services.worker.io.registration import Registration
from services.worker.monitoring.metrics import WorkerMetrics
from services.worker.monitoring.tracing import DenoiseSpans
from services.worker.monitoring.watchdog import end_when_hung
from shared.background import DeferredTasks
from shared.bus.client import Bus, try_decode
from shared.bus.settlement import acknowledge
from shared.bus.subjects import step_consumer
from shared.errors import BadInput, DilaserveError
from shared.messages.instances import Control
from shared.messages.steps import StepJobs
from shared.tasks import cancel, pause

log = structlog.get_logger(__name__)


QUARANTINE_S = 30.0  # time in which operators see the reason, before the worker ends
MAX_LEAVE_S = 1.0  # limit of the time in which the scheduler takes the requests away at the end
LEAVE_CHECK_S = 0.1  # interval of checks whether it has


class Quarantined(DilaserveError):  # noqa: N818
    """The instance computes wrong."""

    def __init__(self, fault: CanaryFault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


@dataclass
class WorkerService:
    """One instance on the bus."""

    _bus: Bus
    _engine: Engine
    _registration: Registration
    _metrics: WorkerMetrics
    _canary: CanaryCheck
    _: KW_ONLY
    iteration_limit_s: Callable[[int], float]  # after which an iteration of this number of tokens hangs

    def __post_init__(self) -> None:
        self._instance_id = self._registration.instance.instance_id
        self._spans = DenoiseSpans(self._instance_id)
        self._deferred = DeferredTasks()
        self._deduplicator = MessageDeduplicator()
        # Messages and their jobs; True: jobs that waited can run; None ends the queue.
        self._queue: SimpleQueue[tuple[StepJobs, list[StepJob]] | Literal[True] | None] = SimpleQueue()
        self._is_aborted = False
        self._running = 0  # number of the iteration that runs; 0: none

    def wake(self) -> None:
        """Jobs that waited can run, such as those of a pattern that is compiled now. From any thread."""
        self._queue.put(True)

    async def run(self, stop: asyncio.Event, fault: CanaryFault | None = None) -> None:
        """Serve until `stop` is set, then let the scheduler take the requests away, finish the waiting jobs and delete
        the registration. `fault`: why the instance computes wrong already at its start.

        Raises: the error that ended the engine; Quarantined at the end of a quarantine.
        """
        try:
            fault = fault or await self._serve(stop)
            if fault:
                await self._stay_quarantined(fault, stop)
                raise Quarantined(fault)
        finally:
            await self._registration.delete()
            self._spans.close()

    async def _stay_quarantined(self, fault: CanaryFault, stop: asyncio.Event) -> None:
        """Show the reason for a while; then the worker restarts and loads its weights again."""
        log.error("this instance computes wrong; it is quarantined", reason=fault.reason)
        self._metrics.quarantined(fault.kind)
        await self._registration.quarantine(fault.reason, self._canary.unverified_s)
        renewing = asyncio.ensure_future(self._registration.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(QUARANTINE_S):
                await stop.wait()
        await cancel({renewing})

    async def _serve(self, stop: asyncio.Event) -> CanaryFault | None:
        """Returns: why the instance computes wrong, if it does."""
        steps, consumer = self._bus.subjects.stream("STEPS"), step_consumer(self._bus.subjects, self._instance_id)
        await self._bus.nc.subscribe(self._bus.subjects.control(self._instance_id), cb=self._receive_control)
        consuming = asyncio.ensure_future(
            self._bus.run_consumer(steps, consumer, self._receive_jobs, is_exclusive=True)
        )
        self._bus.reconnects.subscribe(self._registration.count_connection)
        computing = asyncio.ensure_future(self._compute())
        watching = end_when_hung(
            lambda: self.iteration_limit_s(self._engine.batch_tokens), lambda: self._running, self._registration.delete
        )
        others = (self._registration.run(), self._deferred.run(), watching, stop.wait())
        tasks: set[asyncio.Future[Any]] = {consuming, computing, *(asyncio.ensure_future(each) for each in others)}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises its error
            await self._registration.drain()
            await self._let_requests_leave(computing)
            await cancel({consuming})
            self._queue.put(None)
            await computing
            await self._deferred.run_now()
        except Quarantined as error:
            return error.fault
        finally:
            await cancel(tasks)
        return None

    async def _let_requests_leave(self, computing: asyncio.Future[None]) -> None:
        """Continue until the scheduler has learned of the drain and has taken the requests away: it may have sent
        further steps before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_LEAVE_S):
                await pause(LEAVE_CHECK_S)
                while self._engine.num_resident and not computing.done():
                    await pause(LEAVE_CHECK_S)

    async def _receive_jobs(self, msg: Msg) -> None:
        message = try_decode(msg, StepJobs)
        if message is not None and self._deduplicator.add(message):
            received_s = time.time()
            try:
                self._queue.put((message, read_jobs(message)))
            except BadInput as error:
                log.warning("step jobs dropped", error=error.message)
            self._deferred.defer(partial(self._metrics.jobs_received, message, received_s))
            self._deferred.defer(partial(self._spans.jobs_received, message))
        # Before the jobs run: after a crash of this instance no other could run them.
        self._deferred.defer(partial(acknowledge, msg))

    async def _receive_control(self, msg: Msg) -> None:
        control = try_decode(msg, Control)
        if control is not None and control.action == "drain":
            log.info("draining", within_s=control.within_s)
            await self._registration.drain(control.within_s)

    async def _compute(self) -> None:
        """Publish the engine's iterations until the queue ends. Raises: the error that ended the engine."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Queue[IterationResult | None] = asyncio.Queue()

        def report(result: IterationResult | None) -> None:
            loop.call_soon_threadsafe(finished.put_nowait, result)

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine") as thread:
            iterating = loop.run_in_executor(thread, self._iterate, report)
            try:
                while (result := await finished.get()) is not None:
                    await self._publish(result)
                await iterating
            finally:
                self._is_aborted = True
                self._queue.put(None)

    async def _publish(self, result: IterationResult) -> None:
        results = result.message(sent_s=time.time())
        await self._bus.publish(self._bus.subjects.step_results(self._instance_id), results)
        for request_id, guesses in result.report.provisional:
            await self._bus.publish(self._bus.subjects.guesses(request_id), guesses)
        self._deferred.defer(partial(self._metrics.iteration_finished, results))
        self._deferred.defer(partial(self._spans.iteration_finished, results))

    # In the engine's thread

    def _iterate(self, report: Callable[[IterationResult | None], None]) -> None:
        """Run iterations and report each one; None is the last report."""
        ran, numbers = False, count(1)
        try:
            while self._apply_messages(wait=not (ran and self._engine.waiting)) and not self._is_aborted:
                self._running = next(numbers)
                result = self._engine.run_iteration()
                ran = result is not None  # otherwise the waiting jobs need room or patterns; a message follows those
                if result is not None:
                    if fault := self._canary.after(result):
                        raise Quarantined(fault)
                    report(result)
                self._running = 0
        finally:
            report(None)

    def _apply_messages(self, *, wait: bool) -> bool:
        """Apply the queued messages; if there is none, `wait` for one. Returns: whether there may be jobs to run."""
        while wait or not self._queue.empty():
            received = self._queue.get()
            if received is None:
                self._queue.put(None)  # for the next call
                return not wait
            if received is not True:
                self._engine.accept(*received)
            wait = False
        return True
