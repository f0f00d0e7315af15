"""The parts of a gateway that serve one cell, with a connection to it."""

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self

from services.gateway.admission.slo_admission import SloAdmission
from services.gateway.api.errors import ApiError
from services.gateway.bus_connection import BusConnection
from services.gateway.cell_load import CellLoadTracker
from services.gateway.console.cluster_monitor import ClusterMonitor
from services.gateway.console.unfinished_requests import UnfinishedReader
from services.gateway.inflight import InFlightRequests
from services.gateway.readiness import Readiness
from services.gateway.settings import GatewaySettings
from shared.bus.cell_config import wait_and_check_config
from shared.bus.client import Bus
from shared.health import report_health
from shared.messages.cell import DEFAULT_SLO_S
from shared.messages.requests import Request
from shared.tasks import run_together
from shared.text import TextModel

SLO_UNATTAINABLE = "slo_unattainable"  # code of the refusal of `check_slo`


@dataclass(frozen=True, slots=True)
class CellContext:
    settings: GatewaySettings  # those for this cell
    text: TextModel
    connection: BusConnection
    readiness: Readiness
    load: CellLoadTracker
    inflight: InFlightRequests
    unfinished: UnfinishedReader
    monitor: ClusterMonitor
    slo_admission: SloAdmission | None  # None: every SLO is admitted

    @classmethod
    def of(cls, settings: GatewaySettings, text: TextModel) -> Self:
        connection, timeout_s = BusConnection(), settings.request_timeout_s
        readiness = Readiness(connection, text.card.name, max_queue_s=timeout_s / 2, store_dir=settings.bus_store_dir)
        load = CellLoadTracker(readiness)
        return cls(
            settings=settings,
            text=text,
            connection=connection,
            readiness=readiness,
            load=load,
            inflight=InFlightRequests(connection, text.card, timeout_s, load.count),
            unfinished=UnfinishedReader(connection),
            monitor=ClusterMonitor(settings, text.card.name, readiness),
            slo_admission=SloAdmission(settings.default_slo_s or DEFAULT_SLO_S) if settings.shed else None,
        )

    @property
    def name(self) -> str:
        """The cell's name, which no other cell of the model has."""
        return self.settings.cell

    @property
    def model(self) -> str:
        """The model's name in the API."""
        return self.text.card.name

    def check_slo(self, request: Request) -> None:
        """Count the request in the forecast. Raises: ApiError 429 if it could not meet its SLO."""
        if self.slo_admission is None:
            return
        wait_s = self.slo_admission.admit(request, self.readiness.stats, self.readiness.stats_s, time.monotonic())
        if wait_s > 0:
            message = "slo_ms: the request could not meet its SLO even at the lowest threshold"
            raise ApiError(429, message, param="slo_ms", code=SLO_UNATTAINABLE, retry_after_s=wait_s)

    async def run(self, uses: Sequence[Callable[[Bus], Coroutine[Any, Any, None]]] = ()) -> None:
        """Connect to the bus, subscribe, then watch its storage and run all `uses` of it, until cancelled.

        Raises: BadInput if the settings differ from the configuration of the cell.
        """
        bus = await self.connection.connect(self.settings)
        await self.monitor.subscribe(bus)  # before the gateway is ready, so that it counts every request
        await self.readiness.subscribe(bus)
        background = [self.connection.clock.run(), self.readiness.probe.run(bus), self._agree(bus)]
        background.append(report_health(bus, "gateway"))
        await run_together([*background, self.monitor.read_recent(bus), *(use(bus) for use in uses)])

    async def _agree(self, bus: Bus) -> None:
        """Compare the settings with the cell's configuration, and take its default SLO."""
        config = await wait_and_check_config(bus, {"model": self.model, "default_slo_s": self.settings.default_slo_s})
        if config is not None and self.slo_admission is not None:
            self.slo_admission.default_slo_s = config.default_slo_s
