"""Notices requests, or acknowledgements of them, that were lost between the bus and the scheduler.

A server of a cluster that fails loses messages that it has sent or received. The server that replaces it waits for the
acknowledgements of such messages for REQUEST_ACK_WAIT_S.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog
from nats.aio.msg import Msg

from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS
from shared.tasks import pause

log = structlog.get_logger(__name__)

CHECK_S = 2.0  # interval of checks; every message arrives within less time


@dataclass(frozen=True, slots=True)
class _Check:
    """The state of the consumer, compared with the scheduler's."""

    created: datetime | None
    delivered: int  # messages so far; a redelivery counts too
    unknown: int | None  # sequence of the oldest message without acknowledgement, if the scheduler does not have it


class DeliveryWatch:
    """Compares the messages that one consumer has delivered with those that arrived."""

    def __init__(self, bus: Bus, stream: str, consumer: str, has: Callable[[int], bool]) -> None:
        """`has(sequence)`: whether the scheduler has that message of the stream, and will acknowledge it."""
        self._bus = bus
        self._stream = stream
        self._consumer = consumer
        self._has = has
        self._last = 0  # number of the last delivery
        self._has_gap = False

    def restart(self) -> None:
        """The consumer is created again."""
        self._last, self._has_gap = 0, False

    def note(self, msg: Msg) -> None:
        """A message has arrived."""
        number = msg.metadata.sequence.consumer
        self._has_gap |= number > self._last + 1
        self._last = max(self._last, number)

    async def wait_for_loss(self) -> None:
        """Wait until something was lost: a delivery, or the acknowledgement of the oldest message."""
        before: _Check | None = None
        while True:
            await pause(CHECK_S)
            try:
                now = await self._check()
            except BUS_ERRORS:
                continue  # the consumer is not created yet, or the bus is unavailable
            if before is not None and now.created == before.created and self._is_lost(before, now):
                log.warning("messages of requests lost on the bus", delivered=before.delivered, received=self._last)
                return
            before = now

    async def _check(self) -> _Check:
        """Raises: bus errors."""
        info = await self._bus.js.consumer_info(self._stream, self._consumer)
        delivered = info.delivered.consumer_seq if info.delivered is not None else 0
        oldest = info.ack_floor.stream_seq + 1 if info.ack_floor is not None and info.num_ack_pending else None
        return _Check(info.created, delivered, None if oldest is None or self._has(oldest) else oldest)

    def _is_lost(self, before: _Check, now: _Check) -> bool:
        is_unacknowledged = now.unknown is not None and now.unknown == before.unknown
        return self._has_gap or self._last < before.delivered or is_unacknowledged
