"""The worker's loop: step jobs from the bus to the engine, its results to the bus.

Jobs are fetched and renewals sent on the event loop while the engine computes in a thread of its own.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog
from nats.aio.msg import Msg

from services.worker.engine import Engine
from services.worker.registration import Registration
from services.worker.tracing import Spans
from shared.bus import Bus, read_or_none
from shared.errors import BadInput
from shared.messages.instances import Control
from shared.messages.steps import StepJobs, StepResults
from shared.subjects import step_consumer
from shared.tasks import cancel

log = structlog.get_logger(__name__)

Inbox = list[tuple[StepJobs, float]]  # messages, and when each came: Unix time, seconds


class Worker:
    """One instance on the bus."""

    def __init__(self, bus: Bus, engine: Engine, registration: Registration) -> None:
        self._bus = bus
        self._engine = engine
        self._registration = registration
        self._instance_id = registration.instance.instance_id
        self._spans = Spans(self._instance_id)
        self._inbox: Inbox = []
        self._wake = asyncio.Event()
        self._draining = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; then finish what waits and sign off. Raises: whatever ended the engine."""
        steps, mine = self._bus.subjects.stream("STEPS"), step_consumer(self._bus.subjects, self._instance_id)
        await self._bus.nc.subscribe(self._bus.subjects.control(self._instance_id), cb=partial(self._obey, stop))
        fetching = asyncio.ensure_future(self._bus.run_consumer(steps, mine, self._take))
        renewing = asyncio.ensure_future(self._registration.keep())
        computing = asyncio.ensure_future(self._compute())
        stopping = asyncio.ensure_future(stop.wait())
        tasks: set[asyncio.Future[Any]] = {fetching, renewing, computing, stopping}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
            await cancel({fetching, renewing})
            await self._registration.drain()
            self._draining = True
            self._wake.set()
            await computing
        finally:
            await cancel(tasks)
            await self._registration.delete()
            self._spans.close()

    async def _take(self, msg: Msg) -> None:
        await msg.ack()  # at once: after a crash nobody could run them
        jobs = read_or_none(msg, StepJobs)
        if jobs is not None:
            self._inbox.append((jobs, time.time()))
            self._spans.take(jobs)
            self._wake.set()

    async def _obey(self, stop: asyncio.Event, msg: Msg) -> None:
        order = read_or_none(msg, Control)
        if order is None:
            return
        log.info("told to", action=order.action)
        if order.action == "drain":
            await self._registration.drain(time.time() + order.within_s)
        elif order.action == "stop":
            stop.set()

    async def _compute(self) -> None:
        """One iteration after another, until draining and nothing waits."""
        loop = asyncio.get_running_loop()
        subject = self._bus.subjects.step_results(self._instance_id)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine") as thread:
            while self._wake.is_set() or not self._draining:
                await self._wake.wait()
                self._wake.clear()
                inbox, self._inbox = self._inbox, []
                results = await loop.run_in_executor(thread, self._iterate, inbox)
                if results is not None:
                    await self._bus.publish(subject, results)
                    for guess in self._engine.take_guesses():
                        await self._bus.publish(self._bus.subjects.guesses(guess.request_id), guess.message)
                    self._spans.ran(results)
                    if self._engine.waiting:
                        self._wake.set()

    def _iterate(self, inbox: Inbox) -> StepResults | None:
        for jobs, received_s in inbox:
            try:
                self._engine.accept(jobs, received_s)
            except BadInput as error:
                log.warning("step jobs dropped", error=error.message)
        return self._engine.iterate()
