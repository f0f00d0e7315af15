"""A running cluster as the command line sees it: gateway, instances, and what the scheduler says of its load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import KeyNotFoundError

from dilaserve.stack.probes import check_answers, gateway_ready, nats_answers
from shared.bus.client import Bus, try_decode
from shared.bus.codec import decode
from shared.messages.instances import Instance
from shared.messages.stats import STATS_S, SchedulerStats

ANSWER_S = 2 * STATS_S  # how long the scheduler and the bus are waited for


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """`dilaserve status --json`."""

    url: str
    ready: bool
    instances: list[Instance]
    scheduler: SchedulerStats | None  # None: none leads


class ClusterObserver:
    """Asks again and again over one connection."""

    def __init__(self, bus: Bus, url: str) -> None:
        self._bus = bus
        self._url = url
        self._stats: SchedulerStats | None = None
        self._heard = asyncio.Event()

    async def report(self) -> ClusterReport:
        """The cluster now: waits a little for the scheduler's next word."""
        self._stats = None
        self._heard.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._heard.wait()
        return ClusterReport(
            url=self._url,
            ready=await gateway_ready(self._url),
            instances=await self._instances(),
            scheduler=self._stats,
        )

    async def listen(self) -> None:
        await self._bus.nc.subscribe(self._bus.subjects.stats("scheduler"), cb=self._hear)

    async def _hear(self, msg: Msg) -> None:
        self._stats = try_decode(msg, SchedulerStats)
        self._heard.set()

    async def _instances(self) -> list[Instance]:
        """The registered instances, by name; none while the bus is away."""
        found = []
        with suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                bucket = await self._bus.js.key_value(self._bus.subjects.instances_bucket)
                for key in sorted(await bucket.keys()):
                    with suppress(KeyNotFoundError):  # gone since
                        found.append(decode((await bucket.get(key)).value or b"", Instance))
        return found


@asynccontextmanager
async def open_observer(url: str, nats_url: str, cell: str) -> AsyncIterator[ClusterObserver]:
    """Raises: BadInput if the NATS server does not answer."""
    await check_answers(partial(nats_answers, nats_url), f"NATS at {nats_url}")
    bus = await Bus.connect(nats_url, cell, name="status")
    try:
        observer = ClusterObserver(bus, url)
        await observer.listen()
        yield observer
    finally:
        await bus.close()
