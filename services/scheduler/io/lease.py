"""Leadership of a cell: one scheduler at a time, each with a higher epoch than all before it.

The lease is a key with a time to live. The leader creates it and renews it by revision; the epoch is the first
revision, or more after the bucket was deleted. A leader stops if it finds that another scheduler has led since. It
makes no decision and replaces no message while its lease may have expired, until it has renewed it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec
import structlog
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from shared.bus.client import Bus, until_answered
from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.bus.subjects import HEARTBEAT_S, LEASE_TTL_S, consumer_epoch
from shared.bus.watch import Follower, Look
from shared.errors import RetryLater, Superseded
from shared.retry import retry
from shared.tasks import pause

log = structlog.get_logger(__name__)

KEY = "scheduler"
POLL_S = 0.2  # time between two attempts to take the lease, and to renew it while the bus does not answer


class Lease:
    """A lease that is held. `epoch` rises with every new leader."""

    def __init__(self, bus: Bus, bucket: KeyValue, holder: str, revision: int, epoch: int, taken_s: float) -> None:
        """`holder`: the process that has it. `taken_s`: the monotonic time before the bus stored it, as its lifetime
        may have begun then."""
        self._bus = bus
        self._bucket = bucket
        self.holder, self._value = holder, holder.encode()
        self._revision = revision
        self._renewed_s = taken_s
        self._renewed = asyncio.Event()
        self.epoch = epoch

    @classmethod
    async def acquire(cls, bus: Bus, holder: str, set_up: Callable[[], Awaitable[None]] | None = None) -> "Lease":
        """Wait until no other scheduler leads the cell, then lead: this process is live while it renews the lease.
        `holder` names it in the bucket; `set_up` creates a bucket that was deleted meanwhile.

        A value that nobody has renewed for LEASE_TTL_S is replaced, whatever it is: it may have no time to live.
        """
        bucket, value = await bus.bucket(bus.subjects.leases_bucket), holder.encode()
        seen = 0  # the revision of the other holder
        began_s = seen_s = time.monotonic()  # when the last attempt began, and when that revision was first seen

        async def take() -> int | None:
            """Returns: None if another scheduler holds the lease."""
            nonlocal seen, seen_s, began_s
            began_s = time.monotonic()
            try:
                with bus_errors("take the lease"), suppress(KeyWrongLastSequenceError, KeyNotFoundError):
                    with suppress(KeyWrongLastSequenceError):
                        return await bucket.create(KEY, value)
                    if (revision := (await bucket.get(KEY)).revision or 0) != seen:
                        seen, seen_s = revision, time.monotonic()
                    elif began_s - seen_s > LEASE_TTL_S:
                        log.warning("nobody renews the lease; taking it")
                        return await bucket.update(KEY, value, last=revision)
            except RetryLater:
                if set_up is not None:
                    await set_up()
                raise
            return None

        if (revision := await retry(take)) is None:
            log.info("another scheduler leads; standing by")
        while revision is None:
            await asyncio.sleep(POLL_S)
            revision = await retry(take)
        # Above that of each earlier leader whose consumer exists: a bucket that was deleted counts from 1 again
        list_consumers = partial(bus.consumer_names, bus.subjects.stream("REQUESTS"))
        consumers = await until_answered("list the consumers of requests", list_consumers)
        epoch = max([revision, *(1 + consumer_epoch(name) for name in consumers)])
        bus.renewed_s = began_s
        return cls(bus, bucket, holder, revision, epoch, began_s)

    @property
    def may_have_expired(self) -> bool:
        """Whether another scheduler may lead by now, such as after a stop of this process."""
        return time.monotonic() - self._renewed_s > LEASE_TTL_S

    async def confirm(self) -> None:
        """Wait until `hold`, in another task, has renewed a lease that may have expired. If another scheduler leads,
        `hold` raises Superseded."""
        while self.may_have_expired:
            self._renewed.clear()
            await self._renewed.wait()

    async def publish(self, subject: str, message: msgspec.Struct) -> None:
        """Publish a message that replaces the last of its subject, unless another scheduler may lead by now: that one
        has a later message."""
        if not self.may_have_expired:
            await self._bus.publish(subject, message)

    def fenced(self, follower: Follower) -> Follower:
        """The follower without the looks at which another scheduler may lead: it would replace what that one stored."""

        async def follow(look: Look) -> None:
            if not self.may_have_expired:
                await follower(look)

        return follow

    async def hold(self) -> None:
        """Renew until cancelled. Raises: Superseded if another scheduler has led."""
        while True:
            await retry(self._renew, wait_initial_s=POLL_S, wait_max_s=POLL_S)
            await pause(HEARTBEAT_S)

    async def _renew(self) -> None:
        """Raises: Superseded as `hold`; RetryLater if the bus does not answer."""
        began_s = time.monotonic()
        with bus_errors("renew the lease"):
            async with asyncio.timeout(LEASE_TTL_S):
                await self._write()
        self._renewed_s = self._bus.renewed_s = began_s
        self._renewed.set()

    async def _write(self) -> None:
        """Renew the lease, even if it has expired, unless another scheduler has led since. Raises: Superseded."""
        try:
            self._revision = await self._bucket.update(KEY, self._value, last=self._revision)
        except KeyWrongLastSequenceError:
            last = self._revision
            try:
                self._revision = await self._bucket.create(KEY, self._value)
            except KeyWrongLastSequenceError:
                self._revision = await self._own_revision()
            # The bucket has no other keys. A first revision is that of a new bucket, as the old one was deleted.
            if self._revision != last + 1 and (self._revision != 1 or self.may_have_expired):
                await self.release()
                raise Superseded("another scheduler has led since the lease expired") from None

    async def _own_revision(self) -> int:
        """The revision that this scheduler has written: the bus stored it, but its answer was lost.

        Raises: Superseded if another scheduler holds the lease.
        """
        with suppress(KeyNotFoundError):
            entry = await self._bucket.get(KEY)
            if entry.value == self._value:
                return entry.revision or 0
        raise Superseded("the lease has passed to another scheduler")

    async def release(self) -> None:
        """Let the next scheduler lead at once; if the bus is unavailable, it leads after the lease has expired."""
        try:
            async with asyncio.timeout(LEASE_TTL_S):
                await self._bucket.delete(KEY, last=self._revision)
        except BUS_ERRORS as error:
            log.warning("lease not released; it expires", error=repr(error))
