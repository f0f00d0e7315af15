"""The parts of a gateway that serve one cell, with a connection to it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from services.gateway.bus_connection import BusConnection
from services.gateway.console.cluster_monitor import ClusterMonitor
from services.gateway.inflight import InFlightRequests
from services.gateway.readiness import Readiness
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.bus.codec import decode, encode
from shared.bus.errors import BUS_ERRORS
from shared.errors import BadInput, RetryLater
from shared.health import report_health
from shared.messages.requests import UnfinishedQuery, UnfinishedRequests
from shared.tasks import run_together
from shared.text import TextModel

QUERY_INTERVAL_S = 0.1  # between two queries, so that clients of the list do not load the scheduler
QUERY_TIMEOUT_S = 2.0


class CellContext:
    def __init__(self, settings: GatewaySettings, text: TextModel) -> None:
        """`settings`: those for this cell."""
        self.name = settings.cell  # which no other cell of the model has
        self.text = text
        self.connection, timeout_s = BusConnection(), settings.request_timeout_s
        self.readiness = Readiness(
            self.connection, text.card.name, max_queue_s=timeout_s / 2, store_dir=settings.bus_store_dir
        )
        self.inflight = InFlightRequests(self.connection, text.card, timeout_s, self.readiness.count_sent)
        self.monitor = ClusterMonitor(settings, text.card.name, self.readiness)
        self._settings = settings
        self._asking = asyncio.Lock()
        self._asked_s = 0.0  # loop time of the last query

    async def run(self, uses: Sequence[Callable[[Bus], Coroutine[Any, Any, None]]] = ()) -> None:
        """Connect to the bus, subscribe, then watch its storage and run all `uses` of it, until cancelled."""
        bus = await self.connection.connect(self._settings)
        await self.monitor.subscribe(bus)  # before the gateway is ready, so that it counts every request
        await self.readiness.subscribe(bus)
        self.connection.watch.follow(partial(self.readiness.probe, bus))
        self.connection.watch.follow(partial(self.inflight.keep, bus))
        background = [self.connection.watch.run(), self.readiness.instances.run(), report_health(bus, "gateway")]
        await run_together([*background, self.monitor.read_recent(bus), *(use(bus) for use in uses)])

    async def unfinished(self, query: UnfinishedQuery) -> UnfinishedRequests:
        """Ask the cell's scheduler which requests have no outcome, at this query's turn.

        Raises: RetryLater if no scheduler answers within QUERY_TIMEOUT_S, waiting for other queries included.
        """
        bus, clock = self.connection.bus, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S), self._asking:
                await asyncio.sleep(max(0.0, self._asked_s + QUERY_INTERVAL_S - clock()))
                self._asked_s = clock()
                reply = await bus.nc.request(bus.subjects.unfinished, encode(query), timeout=QUERY_TIMEOUT_S)
                return decode(reply.data, UnfinishedRequests)
        except (*BUS_ERRORS, BadInput):
            message = f"no scheduler of the cell {self.name} answers: the unfinished requests are unknown"
            raise RetryLater(message) from None
