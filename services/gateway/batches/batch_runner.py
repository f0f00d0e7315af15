"""Runs a batch: reads its file, serves MAX_IN_FLIGHT lines at a time, writes the output files, updates its record.

Each line is a durable request with its own id, so a gateway that continues another's batch serves no line twice.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import structlog

from services.gateway.api.app_context import AppContext
from services.gateway.batches.batch_lines import Line, LineResult, LineServer, read_lines
from services.gateway.errors import ApiError
from shared.messages.gateway import Batch, BatchError, BatchStatus
from shared.tasks import cancel

log = structlog.get_logger(__name__)

MAX_IN_FLIGHT = 32  # lines of a batch
SAVE_S = 0.5  # between updates of the batch's record, which also reveal a cancellation


@dataclass(slots=True)
class BatchRunner:
    _context: AppContext
    _invalid_line_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, batch_id: str) -> None:
        """Run a batch to its end; it fails if its record or file is missing. Raises: RetryLater."""
        try:
            batch = await self._context.batches.get(batch_id, owner=None)
            if not batch.ended:
                await self._run(batch)
        except ApiError as error:
            log.warning("batch failed", batch=batch_id, error=error.message)
            with contextlib.suppress(ApiError):
                await self._fail(batch_id, [BatchError(message=error.message, code=error.code or "failed")])

    async def _run(self, batch: Batch) -> None:
        errors, total = list[BatchError](), 0
        async for _ in await self._lines(batch, errors):
            total += 1
        if errors:
            await self._fail(batch.batch_id, errors)
            return
        started = {"status": BatchStatus.IN_PROGRESS, "total": total, "began_s": batch.began_s or self._now_s()}
        batch = await self._context.batches.set(batch.batch_id, started, unless=BatchStatus.CANCELLING)
        if batch.ended:  # cancelled while its file was read
            return
        results = await self._serve(batch, await self._lines(batch, errors))
        await self._finish(batch, sorted(results, key=lambda result: result.number))

    async def _lines(self, batch: Batch, errors: list[BatchError]) -> AsyncIterator[Line]:
        """The lines of the batch's file, which is read while they are served. Appends its errors to `errors`."""
        _, chunks = await self._context.files.content(batch.input_file_id, batch.owner)
        return read_lines(chunks, batch.endpoint, errors)

    async def _fail(self, batch_id: str, errors: list[BatchError]) -> None:
        await self._context.batches.set(
            batch_id, {"errors": errors, "status": BatchStatus.FAILED, "ended_s": self._now_s()}
        )

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
                batch = await self._context.batches.set(batch.batch_id, counts)  # not below those of an earlier gateway
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
        batch = await self._context.batches.set(batch.batch_id, finalizing, unless=BatchStatus.CANCELLING)
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
        await self._context.batches.set(batch.batch_id, final)

    async def _write(self, batch: Batch, kind: str, results: list[LineResult]) -> str:
        rows = (result.row for result in results)
        return (await self._context.files.add(rows, f"{kind}.jsonl", "batch_output", batch.owner)).id

    def _now_s(self) -> int:
        return self._context.batches.now_s()


def _counts(results: list[LineResult]) -> dict[str, int]:
    failed = sum(result.failed for result in results)
    return {"completed": len(results) - failed, "failed": failed}
