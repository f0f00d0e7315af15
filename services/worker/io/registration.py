"""The instance's entry in the instances bucket: put, renewed, deleted."""

import asyncio
from collections.abc import Callable

import msgspec
import nats.errors
import structlog
from nats.js.errors import Error as JetStreamError
from nats.js.kv import KeyValue

from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.bus.subjects import HEARTBEAT_S
from shared.messages.instances import Instance, InstanceState

log = structlog.get_logger(__name__)
AWAY = (nats.errors.Error, JetStreamError, TimeoutError)


class Registration:
    """Says that the instance is here, for as long as `keep` runs."""

    def __init__(self, bus: Bus, instance: Instance, held: Callable[[], int] = lambda: 0) -> None:
        """`held()` tells how many requests the instance holds."""
        self._bus = bus
        self._held = held
        self.instance = instance

    async def put(self) -> None:
        """Write the entry now. A bus that is away is said in the log and met again at the next renewal."""
        self.instance = msgspec.structs.replace(
            self.instance, heartbeat=self.instance.heartbeat + 1, requests=self._held()
        )
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await (await self._bucket()).put(self.instance.instance_id, encode(self.instance))
        except AWAY as error:
            log.warning("registration not renewed", error=repr(error))

    async def keep(self) -> None:
        """Renew every HEARTBEAT_S until cancelled."""
        while True:
            await self.put()
            await asyncio.sleep(HEARTBEAT_S)

    async def drain(self, until_s: float = 0.0) -> None:
        """From now on the instance takes no request that it does not hold; those leave it by `until_s`, Unix time."""
        self.instance = msgspec.structs.replace(self.instance, state=InstanceState.DRAINING, drain_until_s=until_s)
        await self.put()

    async def delete(self) -> None:
        """The instance is gone at once, not when its entry expires."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await (await self._bucket()).delete(self.instance.instance_id)
        except AWAY as error:
            log.warning("registration not deleted; it expires", error=repr(error))

    async def _bucket(self) -> KeyValue:
        return await self._bus.bucket(self._bus.subjects.instances_bucket)
