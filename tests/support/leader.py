"""A stand-in for the leading scheduler of a cell: its configuration and its statistics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.bus.cell_config import KeptConfig
from shared.bus.client import Bus
from shared.messages.cell import CellConfig
from shared.tasks import during, pause
from tests.builders import scheduler_stats

STATS_S = 0.05


@asynccontextmanager
async def leading(bus: Bus, config: CellConfig | None) -> AsyncIterator[None]:
    """Lead the cell in the body. None: as a scheduler of an earlier version, which stores no configuration."""
    if config is not None:
        await KeptConfig(bus, config).store()

    async def publish() -> None:
        while True:
            if bus.nc.is_connected:
                await bus.publish(bus.subjects.stats("scheduler"), scheduler_stats())
            await pause(STATS_S)

    async with during(publish()):
        yield
