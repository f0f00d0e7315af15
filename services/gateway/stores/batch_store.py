"""The records of batches on the bus."""

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec.structs import replace
from nats.js.errors import InvalidKeyError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from services.gateway.bus_connection import BusConnection
from services.gateway.errors import ApiError, not_found
from shared.bus.client import try_decode
from shared.bus.codec import decode, encode
from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.bus.stream_reader import read_last
from shared.errors import BadInput, RetryLater
from shared.messages.gateway import Batch, BatchStatus, BatchWork

WINDOW_S = 24 * 3600


class BatchStore:
    """The cell's batches. Every method raises RetryLater if the bus does not answer."""

    def __init__(self, connection: BusConnection) -> None:
        self._connection = connection

    def now_s(self) -> int:
        """Unix time by the bus's clock, the clock of all batches. Units: whole seconds."""
        return int(self._connection.watch.clock.now_s())

    async def create(self, owner: str, endpoint: str, input_file_id: str, metadata: dict[str, str]) -> Batch:
        """Store a batch and queue it for the next free gateway."""
        now_s = self.now_s()
        batch = Batch(
            batch_id=f"batch-{uuid.uuid4().hex[:24]}",  # with a line's number, a valid request id
            owner=owner,
            endpoint=endpoint,
            input_file_id=input_file_id,
            created_s=now_s,
            expires_s=now_s + WINDOW_S,
            metadata=metadata,
        )
        bus, bucket = self._connection.bus, await self._bucket()
        with bus_errors("store the batch"):
            await bucket.create(batch.batch_id, encode(batch))
        try:
            await bus.store(bus.subjects.batches, BatchWork(batch_id=batch.batch_id))
        except RetryLater:  # else a batch that no gateway runs would stay in the lists
            with suppress(*BUS_ERRORS):
                await bucket.delete(batch.batch_id)
            raise
        return batch

    async def get(self, batch_id: str, owner: str | None) -> Batch:
        """`owner` None: any owner. Raises: ApiError 404 if the owner has no such batch."""
        batch, _ = await self._read(batch_id)
        if owner is not None and batch.owner != owner:
            raise not_found("batch", batch_id, "batch_id")
        return batch

    async def owned_by(self, owner: str | None) -> list[Batch]:
        """The owner's batches, newest first; `owner` None: all."""
        bus = self._connection.bus
        bucket = bus.subjects.batches_bucket
        with bus_errors("list the batches"):
            msgs = await read_last(bus, f"KV_{bucket}", f"$KV.{bucket}.>")
        owned = [
            batch for msg in msgs if msg.data and (batch := try_decode(msg, Batch)) and owner in (None, batch.owner)
        ]
        return sorted(owned, key=lambda batch: (-batch.created_s, batch.batch_id))

    async def check_unread(self, file_id: str, owner: str) -> None:
        """Raises: ApiError 409 if an unfinished batch of the owner reads the file: it would lose the lines served."""
        for batch in await self.owned_by(owner):
            if batch.input_file_id == file_id and not batch.ended:
                message = f"{batch.batch_id} reads the file; delete it when the batch has ended, or cancel the batch"
                raise ApiError(409, message, param="file_id", code="file_in_use")

    async def cancel(self, batch_id: str, owner: str) -> Batch:
        """Stop a running batch, which keeps its results; end a queued one.

        Raises: ApiError 404 if the owner has no such batch, 409 if it has ended.
        """
        await self.get(batch_id, owner)
        now_s = self.now_s()

        def cancelled(batch: Batch) -> Batch:
            if batch.ended:
                raise ApiError(409, f"the batch is {batch.status.value}", code="batch_ended")
            if batch.status is BatchStatus.CANCELLING:
                return batch
            if batch.began_s is None:
                return replace(batch, status=BatchStatus.CANCELLED, cancelling_s=now_s, ended_s=now_s)
            return replace(batch, status=BatchStatus.CANCELLING, cancelling_s=now_s)

        return await self._update(batch_id, cancelled)

    async def set(self, batch_id: str, fields: Mapping[str, object], unless: BatchStatus | None = None) -> Batch:
        """Set fields of a batch that has not ended and is not in the status `unless`. Returns: the stored batch."""

        def changed(batch: Batch) -> Batch:
            return batch if batch.ended or batch.status is unless else replace(batch, **fields)

        return await self._update(batch_id, changed)

    async def _update(self, batch_id: str, change: Callable[[Batch], Batch]) -> Batch:
        """Replace the record by `change(record)`, repeated after a concurrent change. Returns: the stored batch."""
        while True:
            batch, revision = await self._read(batch_id)
            changed = change(batch)
            if changed == batch:
                return batch
            with bus_errors("update the batch"), suppress(KeyWrongLastSequenceError):
                await (await self._bucket()).update(batch_id, encode(changed), last=revision)
                return changed

    async def _read(self, batch_id: str) -> tuple[Batch, int | None]:
        with bus_errors("read the batch"):
            bucket = await self._bucket()
            try:
                entry = await bucket.get(batch_id)
                return decode(entry.value or b"", Batch), entry.revision
            except (KeyNotFoundError, InvalidKeyError, BadInput):
                raise not_found("batch", batch_id, "batch_id") from None

    async def _bucket(self) -> KeyValue:
        bus = self._connection.bus
        return await bus.js.key_value(bus.subjects.batches_bucket)
