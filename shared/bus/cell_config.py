"""Stores and reads the configuration of a cell. The leading scheduler owns it: its environment sets the values.

It stores them before it publishes statistics. So a cell with statistics and without a configuration has a scheduler of
an earlier version.
"""

import asyncio
from contextlib import suppress
from functools import partial

import structlog
from nats.aio.msg import Msg

from shared.bus.client import Bus
from shared.bus.watch import Look
from shared.errors import RetryLater
from shared.messages.cell import CellConfig
from shared.retry import retry
from shared.service import connect_to_bus
from shared.settings import ServiceSettings

log = structlog.get_logger(__name__)


class KeptConfig:
    """Stores the configuration of the leader, and again after it was lost or replaced."""

    def __init__(self, bus: Bus, config: CellConfig) -> None:
        self._bus = bus
        self._config = config
        self.stream = bus.subjects.stream("CONFIG")
        self._stored_at = -1  # the stream's last message when it held the configuration

    async def store(self) -> None:
        """Store the configuration unless the bus has it; repeat this while the bus does not answer."""
        await retry(self._store)

    async def keep(self, look: Look) -> None:
        """Store the configuration if its stream has changed; the next look repeats an attempt that failed."""
        stream = look.streams.get(self.stream)
        if stream is None or (stream.state.messages and stream.state.last_seq == self._stored_at):
            return
        with suppress(RetryLater):
            await self._store()
            self._stored_at = stream.state.last_seq

    async def _store(self) -> None:
        found = await read_config(self._bus)
        if found == self._config:
            return
        if found is not None:
            log.warning("the configuration of the cell changed; the other services read it at their start")
        await self._bus.store(self._bus.subjects.config, self._config)


async def read_config(bus: Bus) -> CellConfig | None:
    """The configuration; None if there is none that is valid. Raises: RetryLater if the bus does not answer."""
    return await bus.last("CONFIG", bus.subjects.config, CellConfig, direct=False)


async def wait_for_config(bus: Bus) -> CellConfig | None:
    """Wait for a leading scheduler, and read its configuration: one of an earlier start may differ.

    Returns: None in a cell whose scheduler is of an earlier version.
    """
    leads = asyncio.Event()

    async def receive(_msg: Msg) -> None:
        leads.set()

    subscription = await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=receive)
    try:
        await leads.wait()
    finally:
        await subscription.unsubscribe()
    config = await retry(partial(read_config, bus))
    if config is None:
        log.warning("the scheduler is of an earlier version; the values that the cell shares have their defaults")
    return config


async def wait_for_config_before_start(name: str, settings: ServiceSettings) -> CellConfig | None:
    """As `wait_for_config`, over a connection of its own, for a service that then loads its model."""
    async with await connect_to_bus(name, settings) as bus:
        return await wait_for_config(bus)
