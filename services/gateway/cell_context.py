"""The parts of a gateway that serve one cell, with a connection to it."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from services.gateway.bus_connection import BusConnection
from services.gateway.console.cluster_monitor import ClusterMonitor
from services.gateway.console.unfinished_requests import UnfinishedReader
from services.gateway.inflight import InFlightRequests
from services.gateway.readiness import Readiness
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.health import report_health
from shared.tasks import run_together
from shared.text import TextModel


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
        self.unfinished = UnfinishedReader(self.connection)
        self.monitor = ClusterMonitor(settings, text.card.name, self.readiness)
        self._settings = settings

    @property
    def sheds(self) -> bool:
        """Whether its scheduler refuses requests that cannot meet their SLO."""
        return self.readiness.stats is not None and self.readiness.stats.shed

    async def run(self, uses: Sequence[Callable[[Bus], Coroutine[Any, Any, None]]] = ()) -> None:
        """Connect to the bus, subscribe, then watch its storage and run all `uses` of it, until cancelled."""
        bus = await self.connection.connect(self._settings)
        await self.monitor.subscribe(bus)  # before the gateway is ready, so that it counts every request
        await self.readiness.subscribe(bus)
        self.connection.watch.follow(partial(self.readiness.probe, bus))
        self.connection.watch.follow(partial(self.inflight.keep, bus))
        background = [self.connection.watch.run(), report_health(bus, "gateway")]
        await run_together([*background, self.monitor.read_recent(bus), *(use(bus) for use in uses)])
