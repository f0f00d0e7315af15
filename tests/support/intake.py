"""Receives requests on the real bus without a core: the test finishes what has arrived."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import numpy as np

from services.scheduler.events import Event, FinishRequest, RequestArrived
from services.scheduler.io.event_queue import EventQueue
from services.scheduler.io.outcome_store import OutcomeStore
from services.scheduler.io.recovery import Recovery
from services.scheduler.io.request_consumer import RequestConsumer
from services.scheduler.io.request_preparer import RequestPreparer
from services.scheduler.state.totals import Totals
from shared.background import DeferredTasks
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.bus.codec import decode
from shared.bus.watch import BusWatch
from shared.edits import NO_EDITS
from shared.messages.requests import Outcome, OutcomeError, OutcomeStatus, Request
from shared.messages.versions import VERSION
from shared.tasks import cancel
from shared.text import TextModel
from tests.builders import serving_stats
from tests.support.present import present
from tests.support.waiting import LIMIT_S, eventually, reached

SLO_S = 5.0
LOOK_S = 0.1


class Intake:
    """Receives requests without a core: the test finishes what has arrived."""

    def __init__(
        self,
        bus: Bus,
        text: TextModel,
        recovery: Recovery,
        max_held: int,
        epoch: int,
        edit_threshold: float = NO_EDITS,
        *,
        stop_at_eos: bool = True,
    ) -> None:
        self.bus = bus
        self.totals = Totals()
        clock = BusClock()
        self.outcomes = OutcomeStore(bus, clock, text)
        self.deferred = DeferredTasks()
        self._queue = EventQueue()
        self._events: list[Event] = []
        self.worker_versions = [VERSION]
        preparer = RequestPreparer(
            bus, text, recovery, False, lambda: self.worker_versions, edit_threshold, stop_at_eos
        )
        self.consumer = RequestConsumer(
            bus,
            clock,
            preparer,
            self._queue,
            self.outcomes,
            self.deferred,
            self.totals,
            default_slo_s=SLO_S,
            max_held=max_held,
            epoch=epoch,
        )
        self.watch = BusWatch(bus, (), LOOK_S)
        self.watch.follow(self.consumer.deliveries.check)

    async def next_event(self) -> Event:
        """Raises: TimeoutError if none comes."""
        if not self._events:
            self._events = await self._queue.get_all(LIMIT_S)
        if not self._events:
            raise TimeoutError
        return self._events.pop(0)

    async def arrived(self) -> RequestArrived:
        event = await self.next_event()
        assert isinstance(event, RequestArrived)
        return event

    async def arrived_names(self, count: int) -> list[str]:
        return [(await self.arrived()).request.request_id for _ in range(count)]

    def finish(self, arrived: RequestArrived, written_by: Collection[str] = ()) -> None:
        output_ids, instances = np.zeros(0, dtype=np.int32), frozenset(written_by)
        stats = serving_stats(instances=sorted(written_by)) if written_by else None
        self.outcomes.finish(
            FinishRequest(arrived, OutcomeStatus.COMPLETED, output_ids, stats, None, written_by=instances)
        )

    async def send(self, request_id: str, prompt: str = "x", priority: int = 0) -> None:
        request = Request(request_id=request_id, prompt=prompt, priority=priority)
        await self.bus.store(self.bus.subjects.requests, request)

    async def status(self, request_id: str) -> OutcomeStatus:
        """The status of the stored outcome, once there is one."""
        stream, subject = self.bus.subjects.stream("OUTCOMES"), self.bus.subjects.outcomes(request_id)
        await eventually(
            lambda: self.bus.js.stream_info(stream, subjects_filter=subject),
            lambda found: found.state.subjects is not None,
        )
        return decode((await self.bus.js.get_last_msg(stream, subject)).data or b"", Outcome).status

    async def rejection(self, request: Request) -> OutcomeError:
        """Send a request. Returns: the error with which it is rejected."""
        await self.bus.store(self.bus.subjects.requests, request)
        assert await self.status(request.request_id) is OutcomeStatus.REJECTED
        return present(present(await self.bus.outcome(request.request_id)).error)

    async def unfinished(self) -> int:
        return (await self.bus.js.stream_info(self.bus.subjects.stream("REQUESTS"))).state.messages

    async def until_waiting(self, count: int) -> None:
        await reached(lambda: self.consumer.num_waiting == count)

    async def until_unfinished(self, count: int) -> None:
        await eventually(self.unfinished, lambda found: found == count)


@asynccontextmanager
async def receiving(
    bus: Bus,
    text: TextModel,
    *,
    max_held: int = 1000,
    epoch: int = 1,
    recovery: Recovery | None = None,
    edit_threshold: float = NO_EDITS,
    stop_at_eos: bool = True,
) -> AsyncIterator[Intake]:
    recovery = recovery or await Recovery.start(bus)
    intake = Intake(bus, text, recovery, max_held, epoch, edit_threshold, stop_at_eos=stop_at_eos)
    await intake.consumer.subscribe_cancels()
    parts = (intake.consumer.run(), intake.deferred.run(), intake.watch.run())
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        yield intake
    finally:
        await intake.outcomes.drain()
        await cancel(tasks)
