"""The gateway's connection to the bus."""

import asyncio

from services.gateway.bus_connection import BusConnection
from services.gateway.settings import GatewaySettings
from shared.errors import RetryLater
from shared.tasks import cancel
from tests.support.gateway import LIMIT_S
from tests.support.waiting import reached


async def test_a_connection_whose_start_is_cancelled_can_be_closed(settings: GatewaySettings) -> None:
    before, connection = asyncio.all_tasks(), BusConnection()
    connecting = asyncio.create_task(connection.connect(settings))

    def is_measuring() -> bool:
        try:
            _ = connection.clock
        except RetryLater:
            return False
        return True

    async with asyncio.timeout(LIMIT_S):
        while not is_measuring():  # noqa: ASYNC110  (the measurement takes about a millisecond)
            await asyncio.sleep(0)
    await cancel([connecting])
    await connection.close()
    await reached(lambda: asyncio.all_tasks() <= before)
