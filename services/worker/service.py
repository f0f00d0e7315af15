"""The worker's loop: step jobs from the bus to the engine, its results to the bus.

The engine computes in a thread of its own, one iteration right after another while jobs wait: what goes over the bus
goes meanwhile, on the event loop.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import structlog
from nats.aio.msg import Msg

from services.worker.engine.engine import Engine
from services.worker.engine.provisional_tokens import ProvisionalTokens
from services.worker.engine.step_jobs import MessageDeduplicator, StepJob, read_jobs
from services.worker.engine.step_results import IterationResult
from services.worker.io.registration import Registration
from services.worker.monitoring.metrics import WorkerMetrics
from services.worker.monitoring.tracing import RequestSpans
from shared.background import DeferredTasks
from shared.bus.client import Bus, try_decode
from shared.bus.subjects import step_consumer
from shared.errors import BadInput
from shared.messages.instances import Control
from shared.messages.steps import StepJobs
from shared.tasks import cancel

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IterationOutput:
    """What one iteration has to say."""

    ran: IterationResult
    guesses: list[ProvisionalTokens]


class WorkerService:
    """One instance on the bus."""

    def __init__(self, bus: Bus, engine: Engine, registration: Registration, metrics: WorkerMetrics) -> None:
        self._bus = bus
        self._engine = engine
        self._registration = registration
        self._metrics = metrics
        self._instance_id = registration.instance.instance_id
        self._spans = RequestSpans(self._instance_id)
        self._deferred = DeferredTasks()
        self._taken = MessageDeduplicator()
        # Messages and their jobs; None: no more will come.
        self._inbox: SimpleQueue[tuple[StepJobs, list[StepJob]] | None] = SimpleQueue()
        self._given_up = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; then finish what waits and sign off. Raises: whatever ended the engine."""
        steps, mine = self._bus.subjects.stream("STEPS"), step_consumer(self._bus.subjects, self._instance_id)
        await self._bus.nc.subscribe(self._bus.subjects.control(self._instance_id), cb=self._obey)
        fetching = asyncio.ensure_future(self._bus.run_consumer(steps, mine, self._take))
        renewing = asyncio.ensure_future(self._registration.keep())
        computing = asyncio.ensure_future(self._compute())
        following_up = asyncio.ensure_future(self._deferred.run())
        stopping = asyncio.ensure_future(stop.wait())
        tasks: set[asyncio.Future[Any]] = {fetching, renewing, computing, following_up, stopping}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
            await cancel({fetching, renewing})
            await self._registration.drain()
            self._inbox.put(None)
            await computing
            await self._deferred.run_now()
        finally:
            await cancel(tasks)
            await self._registration.delete()
            self._spans.close()

    async def _take(self, msg: Msg) -> None:
        message = try_decode(msg, StepJobs)
        if message is not None and self._taken.add(message):
            received_s = time.time()
            try:
                self._inbox.put((message, read_jobs(message)))
            except BadInput as error:
                log.warning("step jobs dropped", error=error.message)
            self._deferred.defer(partial(self._metrics.jobs_received, message, received_s))
            self._deferred.defer(partial(self._spans.take, message))
        self._deferred.defer(msg.ack)  # whether or not they have run: after a crash nobody could run them

    async def _obey(self, msg: Msg) -> None:
        order = try_decode(msg, Control)
        if order is None:
            return
        log.info("told to", action=order.action)
        if order.action == "drain":
            await self._registration.drain(time.time() + order.within_s)

    async def _compute(self) -> None:
        """Publish what the engine finds, until no more jobs will come and none waits. Raises: what ended the engine."""
        loop = asyncio.get_running_loop()
        outbox: asyncio.Queue[IterationOutput | None] = asyncio.Queue()

        def tell(iteration: IterationOutput | None) -> None:
            loop.call_soon_threadsafe(outbox.put_nowait, iteration)

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine") as thread:
            iterating = loop.run_in_executor(thread, self._iterate, tell)
            try:
                while (iteration := await outbox.get()) is not None:
                    await self._publish(iteration)
                await iterating
            finally:
                self._given_up = True
                self._inbox.put(None)

    async def _publish(self, iteration: IterationOutput) -> None:
        results = iteration.ran.message(sent_s=time.time())
        await self._bus.publish(self._bus.subjects.step_results(self._instance_id), results)
        for guess in iteration.guesses:
            await self._bus.publish(self._bus.subjects.guesses(guess.request_id), guess.message)
        self._deferred.defer(partial(self._metrics.ran, results))
        self._deferred.defer(partial(self._spans.ran, results))

    # In the engine's thread

    def _iterate(self, tell: Callable[[IterationOutput | None], None]) -> None:
        """One iteration after another; None is the last that is told."""
        ran = False
        try:
            while self._accept(wait=not (ran and self._engine.waiting)) and not self._given_up:
                iteration = self._engine.run()
                ran = iteration is not None  # else what waits lacks room, which only a message can make
                if iteration is not None:
                    tell(IterationOutput(iteration, self._engine.pop_provisional_tokens()))
        finally:
            tell(None)

    def _accept(self, *, wait: bool) -> bool:
        """Take in what has come; `wait` for it if nothing has. Returns: whether there may be something to do."""
        while wait or not self._inbox.empty():
            received = self._inbox.get()
            if received is None:
                self._inbox.put(None)  # for the next call
                return not wait
            self._engine.accept(*received)
            wait = False
        return True
