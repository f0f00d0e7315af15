"""Leadership of a cell: one scheduler at a time, each with an epoch above all before it.

The lease is a key with a time to live, made by the leader and renewed by revision; whoever finds that another has led
since has been superseded and must stop. The revision at which it was made is the epoch.
"""

import asyncio

import nats.errors
import structlog
from nats.js.errors import APIError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from shared.bus.client import Bus
from shared.bus.subjects import HEARTBEAT_S, LEASE_TTL_S
from shared.errors import Superseded

log = structlog.get_logger(__name__)

KEY = "scheduler"
RETRY_S = 0.2  # between tries to take the lease


class Lease:
    """The lease once it is held. `epoch` rises with every new leader."""

    def __init__(self, bucket: KeyValue, revision: int) -> None:
        self._bucket = bucket
        self._revision = revision
        self.epoch = revision

    @classmethod
    async def acquire(cls, bus: Bus, holder: str) -> "Lease":
        """Wait until no other scheduler of the cell lives, then lead."""
        bucket = await bus.bucket(bus.subjects.leases_bucket)
        waited = False
        while True:
            try:
                return cls(bucket, await bucket.create(KEY, holder.encode()))
            except KeyWrongLastSequenceError:
                if not waited:
                    log.info("another scheduler leads; standing by")
                waited = True
            except (nats.errors.Error, APIError, TimeoutError) as error:
                log.warning("lease not answered", error=repr(error))
            await asyncio.sleep(RETRY_S)

    async def hold(self) -> None:
        """Renew until cancelled. Raises: Superseded when another has led."""
        while True:
            try:
                async with asyncio.timeout(LEASE_TTL_S):
                    await self._renew()
            except (nats.errors.Error, APIError, TimeoutError) as error:
                log.warning("lease not renewed", error=repr(error))
            await asyncio.sleep(HEARTBEAT_S)

    async def _renew(self) -> None:
        """Also where it has expired, as while the bus was away, if nobody has led since. Raises: Superseded."""
        try:
            self._revision = await self._bucket.update(KEY, b"leads", last=self._revision)
        except KeyWrongLastSequenceError:
            expired = self._revision
            try:
                self._revision = await self._bucket.create(KEY, b"leads")
            except KeyWrongLastSequenceError:
                raise Superseded("the lease has passed to another scheduler") from None
            if self._revision != expired + 1:  # the bucket holds nothing else
                await self.release()
                raise Superseded("another scheduler has led since the lease expired") from None

    async def release(self) -> None:
        """Let the next one lead at once; while the bus is away, once the lease has expired."""
        try:
            async with asyncio.timeout(LEASE_TTL_S):
                await self._bucket.delete(KEY, last=self._revision)
        except (nats.errors.Error, TimeoutError) as error:
            log.warning("lease not released; it expires", error=repr(error))
