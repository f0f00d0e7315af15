"""Asks a cell's scheduler which requests have no outcome."""

import asyncio

from services.gateway.bus_connection import BusConnection
from shared.bus.codec import decode, encode
from shared.bus.errors import BUS_ERRORS
from shared.errors import BadInput, RetryLater
from shared.messages.requests import UnfinishedQuery, UnfinishedRequests

MIN_INTERVAL_S = 0.1  # between two queries, so that clients of the list do not load the scheduler
TIMEOUT_S = 2.0


class UnfinishedReader:
    def __init__(self, connection: BusConnection) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()
        self._asked_s = 0.0  # loop time of the last query

    async def read(self, query: UnfinishedQuery) -> UnfinishedRequests:
        """Raises: RetryLater if no scheduler answers within TIMEOUT_S, waiting for other queries included."""
        bus, clock = self._connection.bus, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(TIMEOUT_S), self._lock:
                await asyncio.sleep(max(0.0, self._asked_s + MIN_INTERVAL_S - clock()))
                self._asked_s = clock()
                reply = await bus.nc.request(bus.subjects.unfinished, encode(query), timeout=TIMEOUT_S)
                return decode(reply.data, UnfinishedRequests)
        except (*BUS_ERRORS, BadInput):
            message = f"no scheduler of the cell {bus.subjects.cell} answers: the unfinished requests are unknown"
            raise RetryLater(message) from None
