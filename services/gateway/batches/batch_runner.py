"""Runs batches: takes one off the stream, serves its lines a window at a time at low priority, writes its files.

A gateway that stops or dies gives its batches back to the stream. Whoever takes one up again asks for each line's
outcome first, so nothing is served twice.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg

from services.gateway.api.errors import ApiError, as_api_error, no_such_model, outcome_error
from services.gateway.api.replies import ChatFormat, Json, Replies, TextFormat
from services.gateway.api.request_body import MAX_BODY_BYTES, too_large
from services.gateway.api.request_builder import compose
from services.gateway.api.request_models import ChatBody
from services.gateway.batches.batch_lines import BODIES, Line, as_file, read_lines, written
from services.gateway.batches.batch_store import BatchStore
from services.gateway.batches.file_store import FileStore
from services.gateway.inflight import BATCHES, InFlightRequests
from shared.bus.client import Bus, try_decode
from shared.bus.subjects import BATCH_ACK_WAIT_S, batch_consumer
from shared.errors import RetryLater
from shared.messages.gateway import Batch, BatchError, BatchStatus, BatchWork
from shared.tasks import cancel
from shared.text import TextModel

log = structlog.get_logger(__name__)

AT_ONCE = 32  # requests of a batch under way
PRIORITY = -50  # at most: those who wait go first
SAVE_S = 0.5  # how often the counts are written down, and a cancel is seen
RETRY_S = 1.0
BREATH_S = 0.005  # between wrong lines: nothing is waited for in reading them, and others want the event loop

Result = tuple[int, Line, str, Json | ApiError]


class BatchRunner:
    """Runs the batches that this gateway takes."""

    def __init__(self, text: TextModel, calls: InFlightRequests, files: FileStore, batches: BatchStore) -> None:
        self._text = text
        self._calls = calls
        self._files = files
        self._batches = batches
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch
        self._wrong = asyncio.Lock()  # held by one wrong line at a time
        self._given_up: set[str] = set()  # batches whose requests under way are to be cancelled

    async def run(self, bus: Bus) -> None:
        """Take batches until cancelled; those under way then go back to the stream."""
        stream = bus.subjects.stream("BATCHES")
        await bus.wait_for_stream(stream)
        try:
            await bus.run_consumer(stream, batch_consumer(), self._take)
        finally:
            await cancel(self._running.values())

    async def _take(self, msg: Msg) -> None:
        work = try_decode(msg, BatchWork)
        if work is None:
            await msg.term()
            return
        if work.batch_id in self._running:  # the bus was away for so long that it gives the batch out again
            return
        task = self._running[work.batch_id] = asyncio.create_task(self._hold(msg, work.batch_id))
        task.add_done_callback(lambda _: self._running.pop(work.batch_id))

    async def _hold(self, msg: Msg, batch_id: str) -> None:
        """Run a batch, keeping it from others meanwhile; acknowledge it when it has ended, else give it back."""
        try:
            async with _kept(msg):
                await self._run_to_an_end(batch_id)
        except asyncio.CancelledError:
            with contextlib.suppress(nats.errors.Error):
                await msg.nak()
            raise
        except RetryLater as error:
            log.warning("batch put off", batch=batch_id, error=str(error))
            with contextlib.suppress(nats.errors.Error):
                await msg.nak(delay=RETRY_S)
        else:
            await msg.ack()

    async def _run_to_an_end(self, batch_id: str) -> None:
        """Run a batch; one that is gone, or whose file is, has failed. Raises: RetryLater."""
        try:
            await self._run(batch_id)
        except ApiError as error:  # the batch or its file is gone
            log.warning("batch given up", batch=batch_id, error=error.message)
            fault = BatchError(message=error.message, code=error.code or "failed")
            failed = {"errors": [fault], "status": BatchStatus.FAILED, "ended_s": int(time.time())}
            with contextlib.suppress(ApiError):
                await self._batches.change(batch_id, partial(_with, changes=failed))

    async def _run(self, batch_id: str) -> None:
        batch = await self._batches.get(batch_id, owner=None)
        if batch.ended:
            return
        content = await self._files.content(batch.input_file_id, batch.owner)
        lines, errors = await asyncio.to_thread(read_lines, content, batch.endpoint)
        if errors:
            wrong = {"errors": errors, "status": BatchStatus.FAILED, "ended_s": int(time.time())}
            await self._batches.change(batch_id, partial(_with, changes=wrong))
            return
        if batch.status is not BatchStatus.CANCELLING:
            begun = {"status": BatchStatus.IN_PROGRESS, "total": len(lines), "began_s": int(time.time())}
            batch = await self._batches.change(batch_id, partial(_unless_cancelling, changes=begun))
            if batch.ended:  # cancelled while its file was read
                return
        results = await self._serve(batch, lines)
        await self._finish(batch, results)

    async def _serve(self, batch: Batch, lines: list[Line]) -> list[Result]:
        """What came of the lines, all of them unless the batch is cancelled or expires."""
        results: list[Result] = []
        numbered = iter(enumerate(lines))

        async def serve_some() -> None:
            for number, line in numbered:
                results.append(await self._serve_line(batch, number, line))

        workers = [asyncio.ensure_future(serve_some()) for _ in range(min(AT_ONCE, len(lines)))]
        try:
            while True:
                _, waiting = await asyncio.wait(workers, timeout=SAVE_S)
                now = await self._batches.change(batch.batch_id, partial(_with, changes=_counts(results)))
                if not waiting:
                    break
                if now.ended or now.status is BatchStatus.CANCELLING or time.time() > batch.expires_s:
                    self._given_up.add(batch.batch_id)
                    break
        finally:
            await cancel(workers)
            self._given_up.discard(batch.batch_id)
        for worker in workers:
            if not worker.cancelled():
                worker.result()
        return results

    async def _serve_line(self, batch: Batch, number: int, line: Line) -> Result:
        """The reply to one line, however long the bus or the instances are away."""
        name = f"{batch.batch_id}-{number}"
        while True:
            try:
                return number, line, name, await self._reply(batch, line, name)
            except RetryLater:
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                told = as_api_error(error)
                if told.status == 500 and not isinstance(error, ApiError):  # it refers to the log
                    log.exception("batch line failed", request_id=name)
                async with self._wrong:
                    await asyncio.sleep(BREATH_S)
                return number, line, name, told

    async def _reply(self, batch: Batch, line: Line, name: str) -> Json:
        """Raises: whatever is wrong with the line; ApiError if its request was not completed; RetryLater."""
        given = bytes(line.body)
        if len(given) > MAX_BODY_BYTES:
            raise too_large(MAX_BODY_BYTES)
        body = BODIES[batch.endpoint].model_validate_json(given)
        if body.model != self._text.card.name:
            raise no_such_model(body.model, self._text.card.name)
        now_s = time.time()
        left_s = max(1.0, batch.expires_s - now_s)
        request = await compose(body, self._text, name, now_s)
        request = msgspec.structs.replace(
            request,
            stream=False,
            guesses=False,
            priority=min(request.priority, PRIORITY),
            slo_s=request.slo_s or left_s,
        )
        call = await self._calls.open(request, BATCHES, lasting=True, timeout_s=left_s)
        try:
            outcome = await call.outcome()
        finally:
            if batch.batch_id in self._given_up:
                call.give_up()
            self._calls.close(call)
        wrong = outcome_error(outcome)
        if wrong is not None:
            raise wrong
        form = ChatFormat() if isinstance(body, ChatBody) else TextFormat()
        return Replies(form, body.model, name, outcome.arrival_s, include_usage=True).whole(outcome)

    async def _finish(self, batch: Batch, results: list[Result]) -> None:
        """Write the files, then say how the batch ended."""
        results.sort(key=lambda result: result[0])
        good = [written(batch.batch_id, *result) for result in results if not isinstance(result[3], ApiError)]
        bad = [written(batch.batch_id, *result) for result in results if isinstance(result[3], ApiError)]
        now_s = int(time.time())
        finalizing = partial(_unless_cancelling, changes={"status": BatchStatus.FINALIZING})
        now = await self._batches.change(batch.batch_id, finalizing)
        if now.ended:  # another gateway was quicker, which had taken this one for dead
            return
        files = {
            f"{kind}_file_id": await self._write(kind, lines, batch.owner)
            for kind, lines in (("output", good), ("error", bad))
            if lines
        }
        status = BatchStatus.COMPLETED
        if len(results) < batch.total or now.status is BatchStatus.CANCELLING:
            status = BatchStatus.CANCELLED if now.status is BatchStatus.CANCELLING else BatchStatus.EXPIRED
        ended = {"status": status, "finalizing_s": now_s, "ended_s": int(time.time()), **_counts(results), **files}
        await self._batches.change(batch.batch_id, partial(_with, changes=ended))

    async def _write(self, kind: str, lines: list[Json], owner: str) -> str:
        content = await asyncio.to_thread(as_file, lines)  # 50,000 of them would hold up every stream
        return (await self._files.add(content, f"{kind}.jsonl", "batch_output", owner)).id


@contextlib.asynccontextmanager
async def _kept(msg: Msg) -> AsyncIterator[None]:
    """Tell the bus meanwhile that the message is being worked on."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(BATCH_ACK_WAIT_S / 4)
            with contextlib.suppress(nats.errors.Error):
                await msg.in_progress()

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()


def _counts(results: list[Result]) -> dict[str, int]:
    failed = sum(isinstance(result[3], ApiError) for result in results)
    return {"completed": len(results) - failed, "failed": failed}


def _with(batch: Batch, changes: Mapping[str, object]) -> Batch:
    return batch if batch.ended else msgspec.structs.replace(batch, **changes)


def _unless_cancelling(batch: Batch, changes: Mapping[str, object]) -> Batch:
    return batch if batch.status is BatchStatus.CANCELLING else _with(batch, changes)
