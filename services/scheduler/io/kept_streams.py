"""Keeps the streams of the cell: sets lost ones up again, and reports step messages that were lost."""

from collections.abc import Awaitable, Callable

import structlog

from services.scheduler.io.step_streams import StepStreams
from shared.bus.client import Bus
from shared.bus.watch import Look

log = structlog.get_logger(__name__)


class KeptStreams:
    """Sets up the streams and buckets that were deleted, or were lost with the memory of a server that restarted."""

    def __init__(self, bus: Bus, set_up: Callable[[], Awaitable[None]], on_steps_lost: Callable[[], None]) -> None:
        """`set_up()` creates what is missing of the cell, also after a partial set-up."""
        self._set_up = set_up
        self._on_steps_lost = on_steps_lost
        self._steps = StepStreams(bus.subjects)
        self.described = self._steps.names  # the streams that each look must describe

    async def keep(self, look: Look) -> None:
        if look.missing:
            await self._set_up()
            log.warning("streams set up again", lost=sorted(look.missing))
        if lost := self._steps.lost(look):
            log.warning("step messages lost", streams=lost)
            self._on_steps_lost()
