"""Follows the operator's order to drain the cell, which the statistics publish to the gateways."""

from dataclasses import dataclass

import structlog

from shared.bus.client import Bus
from shared.bus.drain_order import is_drain_ordered
from shared.errors import RetryLater
from shared.messages.stats import STATS_S
from shared.tasks import pause

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class DrainWatch:
    _bus: Bus
    is_draining: bool = False  # as last read; while the bus is unavailable it stays

    async def run(self) -> None:
        """Read the order once per STATS_S, until cancelled."""
        while True:
            try:
                ordered = await is_drain_ordered(self._bus)
            except RetryLater:
                ordered = self.is_draining
            if ordered != self.is_draining:
                log.info("the cell drains" if ordered else "the cell accepts requests again")
            self.is_draining = ordered
            await pause(STATS_S)
