"""Stores and reads the configuration of a cell.

The first scheduler of a cell writes it, before it publishes statistics. So a cell with statistics and without a
configuration has a scheduler of an earlier version.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

import structlog
from nats.aio.msg import Msg

from shared.bus import subjects as declared
from shared.bus.client import Bus
from shared.bus.errors import bus_errors
from shared.bus.watch import Look
from shared.cell_config import check_config
from shared.messages.cell import CellConfig
from shared.retry import retry
from shared.service import connect_to_bus
from shared.settings import ServiceSettings
from shared.tasks import pause

POLL_S = 0.1

log = structlog.get_logger(__name__)


async def settle_config(bus: Bus, config: CellConfig) -> CellConfig:
    """The configuration of the cell; `config` becomes it if there is none, or none that is valid."""

    async def settle() -> CellConfig:
        await bus.store(bus.subjects.config, config, if_first=True)
        if (found := await read_config(bus)) is None:
            await bus.store(bus.subjects.config, config)
        return found or config

    return await retry(settle)


async def replace_config(bus: Bus, config: CellConfig) -> None:
    """Store the configuration of the cell, also before a scheduler has set it up. Running services keep the last one.

    Raises: RetryLater if the bus does not answer.
    """
    with bus_errors("create the stream of the configuration"):
        await bus.js.add_stream(declared.config_stream(bus.subjects))
    await bus.store(bus.subjects.config, config)


class KeptConfig:
    """Stores the configuration of the leader again after a loss, and logs if it has been replaced."""

    def __init__(self, bus: Bus, config: CellConfig) -> None:
        self._bus = bus
        self._config = config
        self.stream = bus.subjects.stream("CONFIG")
        self._settled_at = -1  # the stream's last message when it was settled

    async def settle(self, look: Look) -> None:
        """Settle the configuration if its stream has changed."""
        stream = look.streams.get(self.stream)
        if stream is None or (stream.state.messages and stream.state.last_seq == self._settled_at):
            return
        if await settle_config(self._bus, self._config) != self._config:
            log.warning("the configuration of the cell was replaced; start its services again")
        self._settled_at = stream.state.last_seq


async def read_config(bus: Bus) -> CellConfig | None:
    """The configuration; None if there is none that is valid. Raises: RetryLater if the bus does not answer."""
    return await bus.last("CONFIG", bus.subjects.config, CellConfig, direct=False)


async def wait_and_check_config(bus: Bus, own: Mapping[str, object]) -> CellConfig | None:
    """Wait for the configuration of the cell, and compare it with a service's `own` values.

    Returns: None in a cell whose scheduler is of an earlier version. Raises: BadInput as `check_config`.
    """
    config = await _wait_for_config(bus)
    if config is None:
        log.warning("the scheduler is of an earlier version; values that the cell shares are not compared")
    else:
        check_config(bus.subjects.cell, config, own)
    return config


async def check_before_start(name: str, settings: ServiceSettings, own: Mapping[str, object]) -> CellConfig | None:
    """As `wait_and_check_config`, over a connection of its own, for a service that then loads its model."""
    bus = await connect_to_bus(name, settings)
    try:
        return await wait_and_check_config(bus, own)
    finally:
        await bus.close()


async def _wait_for_config(bus: Bus) -> CellConfig | None:
    has_statistics = asyncio.Event()

    async def receive(_msg: Msg) -> None:
        has_statistics.set()

    subscription = await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=receive)
    try:
        while True:
            has_scheduler = has_statistics.is_set()  # before the read, as a scheduler writes the configuration first
            config = await retry(partial(read_config, bus))
            if config is not None or has_scheduler:
                return config
            await pause(POLL_S)
    finally:
        await subscription.unsubscribe()
