"""Follows the operator's order to drain the cell, which the statistics publish to the gateways."""

import structlog

from shared.bus.client import Bus
from shared.bus.drain_order import is_drain_ordered
from shared.bus.watch import Look
from shared.errors import RetryLater

log = structlog.get_logger(__name__)


class DrainWatch:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.stream = f"KV_{bus.subjects.drain_bucket}"
        self.is_draining = False  # as last read; while the bus is unavailable it stays
        self._read_at = -1  # the bucket's last message when the order was read

    async def read_order(self, look: Look) -> None:
        """Read the order if the bucket has changed."""
        bucket = look.streams.get(self.stream)
        if bucket is None or bucket.state.last_seq == self._read_at:
            return
        try:
            ordered = await is_drain_ordered(self._bus)
        except RetryLater:
            return
        if ordered != self.is_draining:
            log.info("the cell drains" if ordered else "the cell accepts requests again")
        self.is_draining, self._read_at = ordered, bucket.state.last_seq
