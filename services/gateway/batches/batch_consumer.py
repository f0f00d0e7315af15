"""Takes batches off the stream BATCHES and settles their messages.

A gateway that stops or dies returns its batches to the stream.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from nats.aio.msg import Msg

from services.gateway.batches.batch_runner import BatchRunner
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.errors import BUS_ERRORS
from shared.bus.settlement import discard, settled
from shared.bus.subjects import BATCH_ACK_WAIT_S, batch_consumer
from shared.errors import BadInput
from shared.messages.gateway import BatchWork
from shared.tasks import cancel


class BatchConsumer:
    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch id

    async def run(self, bus: Bus) -> None:
        """Run batches until cancelled; unfinished ones then return to the stream."""
        stream = bus.subjects.stream("BATCHES")
        await bus.wait_for_stream(stream)
        try:
            await bus.run_consumer(stream, batch_consumer(), self._receive)
        finally:
            await cancel(self._running.values())

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
        async with settled(msg), _in_progress(msg):
            await self._runner.run(batch_id)


@contextlib.asynccontextmanager
async def _in_progress(msg: Msg) -> AsyncIterator[None]:
    """Extend the message's acknowledgement deadline within the block."""

    async def extend() -> None:
        while True:
            await asyncio.sleep(BATCH_ACK_WAIT_S / 4)
            with contextlib.suppress(*BUS_ERRORS):
                await msg.in_progress()

    task = asyncio.create_task(extend())
    try:
        yield
    finally:
        task.cancel()
