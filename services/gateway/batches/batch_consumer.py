"""Takes batches off the stream BATCHES and settles their messages.

A gateway that stops or dies returns its batches to the stream.
"""

import asyncio
from contextlib import suppress
from functools import partial

import structlog
from nats.aio.msg import Msg

from services.gateway.batches.batch_runner import BatchRunner
from services.gateway.stores.batch_store import BatchStore
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.errors import BUS_ERRORS
from shared.bus.settlement import discard, settled
from shared.bus.subjects import BATCH_ACK_WAIT_S, batch_consumer
from shared.errors import BadInput
from shared.messages.gateway import BatchWork
from shared.tasks import cancel, during, pause

log = structlog.get_logger(__name__)


class BatchConsumer:
    def __init__(self, runner: BatchRunner, batches: BatchStore) -> None:
        self._runner = runner
        self._batches = batches
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch id

    async def run(self, bus: Bus) -> None:
        """Run batches until cancelled; unfinished ones then return to the stream."""
        stream = bus.subjects.stream("BATCHES")
        await bus.wait_for_stream(stream)
        try:
            await bus.run_consumer(stream, batch_consumer(), self._receive, partial(self._queue_lost, bus))
        finally:
            await cancel(self._running.values())

    async def _queue_lost(self, bus: Bus) -> None:
        """Queue the unfinished batches again if the stream is new: an earlier one was deleted with their messages."""
        if (await bus.js.stream_info(bus.subjects.stream("BATCHES"))).state.last_seq:
            return
        for batch in await self._batches.owned_by(None):
            if not batch.ended:
                log.warning("batch queued again: the bus has lost its message", batch=batch.batch_id)
                await bus.store(bus.subjects.batches, BatchWork(batch_id=batch.batch_id))

    async def _receive(self, msg: Msg) -> None:
        try:
            batch_id = decode(msg.data, BatchWork).batch_id
        except BadInput as error:
            await discard(msg, error)
            return
        if batch_id not in self._running:  # else redelivered after the bus was unavailable
            task = self._running[batch_id] = asyncio.create_task(self._run(msg, batch_id))
            task.add_done_callback(lambda _: self._running.pop(batch_id))

    async def _run(self, msg: Msg, batch_id: str) -> None:
        async with settled(msg), during(_extend_deadline(msg)):
            await self._runner.run(batch_id)


async def _extend_deadline(msg: Msg) -> None:
    while True:
        await pause(BATCH_ACK_WAIT_S / 4)
        with suppress(*BUS_ERRORS):
            await msg.in_progress()
