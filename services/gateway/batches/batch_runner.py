"""Takes batches off the stream BATCHES, runs them, and settles their messages.

A batch's file is read, MAX_IN_FLIGHT of its lines are served at a time, and their results are written. Each line is a
durable request with its own id, so a gateway that continues another's batch serves no line twice. A gateway that stops
or dies returns its batches to the stream.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import structlog
from nats.aio.msg import Msg

from services.gateway.api.app_context import AppContext
from services.gateway.batches.batch_lines import Line, LineResult, read_lines
from services.gateway.batches.line_server import LineServer
from services.gateway.errors import ApiError
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.errors import BUS_ERRORS
from shared.bus.settlement import discard, settled
from shared.bus.subjects import BATCH_ACK_WAIT_S, batch_consumer
from shared.errors import BadInput
from shared.messages.gateway import Batch, BatchError, BatchStatus, BatchWork
from shared.tasks import cancel, during, pause

log = structlog.get_logger(__name__)

MAX_IN_FLIGHT = 32  # lines of a batch
SAVE_S = 0.5  # between updates of the batch's record, which also reveal a cancellation


class BatchRunner:
    def __init__(self, context: AppContext) -> None:
        self._context, self._batches, self._now_s = context, context.batches, context.batches.now_s
        self._invalid_line_lock = asyncio.Lock()
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
            task = self._running[batch_id] = asyncio.create_task(self._settle(msg, batch_id))
            task.add_done_callback(lambda _: self._running.pop(batch_id))

    async def _settle(self, msg: Msg, batch_id: str) -> None:
        """Run a batch to its end; it fails if its record or file is missing."""
        async with settled(msg), during(_extend_deadline(msg)):
            try:
                batch = await self._batches.get(batch_id, owner=None)
                if not batch.ended:
                    await self._run(batch)
            except ApiError as error:
                log.warning("batch failed", batch=batch_id, error=error.message)
                with suppress(ApiError):
                    await self._fail(batch_id, [BatchError(message=error.message, code=error.code or "failed")])

    async def _run(self, batch: Batch) -> None:
        errors, total = list[BatchError](), 0
        async for _ in await self._lines(batch, errors):
            total += 1
        if errors:
            await self._fail(batch.batch_id, errors)
            return
        started = {"status": BatchStatus.IN_PROGRESS, "total": total, "began_s": batch.began_s or self._now_s()}
        batch = await self._batches.set(batch.batch_id, started, unless=BatchStatus.CANCELLING)
        if batch.ended:  # cancelled while its file was read
            return
        results = await self._serve(batch, await self._lines(batch, errors))
        await self._finish(batch, sorted(results, key=lambda result: result.number))

    async def _lines(self, batch: Batch, errors: list[BatchError]) -> AsyncIterator[Line]:
        """The lines of the batch's file, which is read while they are served. Appends its errors to `errors`."""
        _, chunks = await self._context.files.content(batch.input_file_id, batch.owner)
        return read_lines(chunks, batch.endpoint, errors)

    async def _fail(self, batch_id: str, errors: list[BatchError]) -> None:
        failed = {"errors": errors, "status": BatchStatus.FAILED, "ended_s": self._now_s()}
        await self._batches.set(batch_id, failed)

    async def _serve(self, batch: Batch, lines: AsyncIterator[Line]) -> list[LineResult]:
        """The results of all lines, or of those served before the batch was cancelled or expired, by any gateway."""
        handled = batch.completed + batch.failed + MAX_IN_FLIGHT  # lines of an earlier gateway, at most
        server = LineServer(self._context, batch, self._invalid_line_lock, self._is_stopped(batch), handled)
        results: list[LineResult] = []
        numbers, reading = itertools.count(), asyncio.Lock()

        async def serve_lines() -> None:
            while True:
                async with reading:
                    number, line = next(numbers), await anext(lines, None)
                if line is None:
                    return
                if (result := await server.serve(number, line)) is not None:
                    results.append(result)

        workers = [asyncio.ensure_future(serve_lines()) for _ in range(min(MAX_IN_FLIGHT, batch.total))]
        try:
            pending = set(workers)
            while pending:
                _, pending = await asyncio.wait(workers, timeout=SAVE_S)
                counts = {name: max(count, getattr(batch, name)) for name, count in _counts(results).items()}
                batch = await self._batches.set(batch.batch_id, counts)  # not below those of an earlier gateway
                if batch.ended or (self._is_stopped(batch) and not server.is_stopped):
                    server.cancel_requests = True
                    break
        finally:
            await cancel(workers)
        for worker in workers:
            if not worker.cancelled():
                worker.result()
        return results

    def _is_stopped(self, batch: Batch) -> bool:
        return batch.status is BatchStatus.CANCELLING or self._now_s() > batch.expires_s

    async def _finish(self, batch: Batch, results: list[LineResult]) -> None:
        finalizing, finalizing_s = {"status": BatchStatus.FINALIZING}, self._now_s()
        batch = await self._batches.set(batch.batch_id, finalizing, unless=BatchStatus.CANCELLING)
        if batch.ended:  # by another gateway, which received the batch after this one lost the bus
            return
        files = {
            f"{kind}_file_id": await self._write(batch, kind, chosen)
            for kind, failed in (("output", False), ("error", True))
            if (chosen := [result for result in results if result.failed is failed])
        }
        status = BatchStatus.COMPLETED
        if batch.status is BatchStatus.CANCELLING:
            status = BatchStatus.CANCELLED
        elif len(results) < batch.total:
            status = BatchStatus.EXPIRED
        final = {"status": status, "finalizing_s": finalizing_s, "ended_s": self._now_s(), **_counts(results), **files}
        await self._batches.set(batch.batch_id, final)

    async def _write(self, batch: Batch, kind: str, results: list[LineResult]) -> str:
        rows = (result.row for result in results)
        return (await self._context.files.add(rows, f"{kind}.jsonl", "batch_output", batch.owner)).id


def _counts(results: list[LineResult]) -> dict[str, int]:
    failed = sum(result.failed for result in results)
    return {"completed": len(results) - failed, "failed": failed}


async def _extend_deadline(msg: Msg) -> None:
    while True:
        await pause(BATCH_ACK_WAIT_S / 4)
        with suppress(*BUS_ERRORS):
            await msg.in_progress()
