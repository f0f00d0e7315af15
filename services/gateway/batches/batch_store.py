"""Batches as records on the bus: made, found, listed, told to stop. Running them is batch_runner's."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable

import msgspec
import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.errors import InvalidKeyError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from services.gateway.api.errors import ApiError
from services.gateway.bus_connection import BusConnection
from shared.bus.codec import decode, encode
from shared.errors import BadInput, RetryLater
from shared.messages.gateway import Batch, BatchStatus, BatchWork

WINDOW_S = 24 * 3600
LIST_S = 10.0  # how long all of them may take to come: the bus may go away before the last


class BatchStore:
    """The cell's batches. Every method raises RetryLater if the bus does not answer."""

    def __init__(self, link: BusConnection) -> None:
        self._link = link

    async def add(self, owner: str, endpoint: str, input_file_id: str, metadata: dict[str, str]) -> Batch:
        """Store a batch and its work; whichever gateway is free runs it."""
        now_s = int(time.time())
        batch = Batch(
            batch_id=f"batch-{uuid.uuid4().hex[:24]}",  # with a line's number still a request's id
            owner=owner,
            endpoint=endpoint,
            input_file_id=input_file_id,
            created_s=now_s,
            expires_s=now_s + WINDOW_S,
            metadata=metadata,
        )
        try:
            await (await self._bucket()).create(batch.batch_id, encode(batch))
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise _away(error) from error
        await self._link.bus.store(self._link.bus.subjects.batches, BatchWork(batch_id=batch.batch_id))
        return batch

    async def get(self, batch_id: str, owner: str | None) -> Batch:
        """`owner` None: whoever's. Raises: ApiError 404 if the owner has no such batch."""
        batch, _ = await self._read(batch_id)
        if owner is not None and batch.owner != owner:
            raise no_such_batch(batch_id)
        return batch

    async def of(self, owner: str) -> list[Batch]:
        """The owner's batches, the latest first."""
        bucket = await self._bucket()
        try:
            async with asyncio.timeout(LIST_S):
                batches = await _all(bucket)
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise _away(error) from error
        found = [batch for batch in batches if batch.owner == owner]
        return sorted(found, key=lambda batch: (-batch.created_s, batch.batch_id))

    async def cancel(self, batch_id: str, owner: str) -> Batch:
        """Have it stop; what has ended is kept. One that waits for its turn ends at once.
        Raises: ApiError 404, or 409 if it has ended."""
        await self.get(batch_id, owner)
        now_s = int(time.time())

        def stop(batch: Batch) -> Batch:
            if batch.ended:
                raise ApiError(409, f"the batch is {batch.status.value}", code="batch_ended")
            if batch.status is BatchStatus.CANCELLING:
                return batch
            if batch.began_s is None:
                return msgspec.structs.replace(batch, status=BatchStatus.CANCELLED, cancelling_s=now_s, ended_s=now_s)
            return msgspec.structs.replace(batch, status=BatchStatus.CANCELLING, cancelling_s=now_s)

        return await self.change(batch_id, stop)

    async def change(self, batch_id: str, change: Callable[[Batch], Batch]) -> Batch:
        """Replace the record by what `change` makes of it, again if another was quicker. Returns: the new one."""
        while True:
            batch, revision = await self._read(batch_id)
            changed = change(batch)
            if changed == batch:
                return batch
            try:
                await (await self._bucket()).update(batch_id, encode(changed), last=revision)
            except KeyWrongLastSequenceError:
                continue
            except (nats.errors.Error, JetStreamError, TimeoutError) as error:
                raise _away(error) from error
            return changed

    async def _read(self, batch_id: str) -> tuple[Batch, int | None]:
        try:
            entry = await (await self._bucket()).get(batch_id)
            return decode(entry.value or b"", Batch), entry.revision
        except (KeyNotFoundError, InvalidKeyError, BadInput):
            raise no_such_batch(batch_id) from None
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise _away(error) from error

    async def _bucket(self) -> KeyValue:
        bus = self._link.bus
        try:
            return await bus.js.key_value(bus.subjects.batches_bucket)
        except (NotFoundError, nats.errors.Error, TimeoutError) as error:
            raise _away(error) from error


async def _all(bucket: KeyValue) -> list[Batch]:
    """Everyone's, in one go."""
    watcher = await bucket.watchall(inactive_threshold=LIST_S)  # a short one: the bus keeps what follows for so long
    batches = []
    try:
        async for entry in watcher:
            if entry is None:  # there are no more
                break
            with contextlib.suppress(BadInput):
                batches.append(decode(entry.value or b"", Batch))
    finally:
        await watcher.stop()  # type: ignore[no-untyped-call]
    return batches


def no_such_batch(batch_id: str) -> ApiError:
    return ApiError(404, f"there is no batch {batch_id[:100]!r}", param="batch_id", code="not_found")


def _away(error: Exception) -> RetryLater:
    return RetryLater(f"the batches are not answered: {error!r}")
