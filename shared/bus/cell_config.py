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
from shared.cell_config import check_config
from shared.messages.cell import CellConfig
from shared.retry import retry
from shared.service import connect_to_bus
from shared.settings import ServiceSettings
from shared.tasks import pause

POLL_S = 0.1
KEEP_S = 5.0  # interval of the leader's checks that the configuration is stored

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


async def keep_config(bus: Bus, config: CellConfig) -> None:
    """Until cancelled, store the configuration again after a loss. Log once if it has been replaced."""
    while True:
        await pause(KEEP_S)
        if await settle_config(bus, config) != config:
            log.warning("the configuration of the cell was replaced; start its services again")
            await asyncio.Event().wait()


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
