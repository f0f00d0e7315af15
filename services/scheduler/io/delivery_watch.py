"""Notices requests, or acknowledgements of them, that were lost between the bus and the scheduler.

When a NATS server of a cluster fails, deliveries and acknowledgements on their way can be lost. The server that then
leads the consumer would wait a day for them (REQUEST_ACK_WAIT_S). So the caller creates the consumer again, and the bus
delivers every message without an acknowledgement again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog
from nats.aio.msg import Msg
from nats.js.api import ConsumerInfo

from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS
from shared.bus.watch import Look

log = structlog.get_logger(__name__)

CHECK_S = 2.0  # shortest time between two checks; an acknowledgement takes less to arrive
MAX_PAUSE_S = 60.0  # limit of the pause of checks after a loss: CHECK_S, doubled with each further loss in a row


@dataclass(frozen=True, slots=True)
class Check:
    """The consumer and the messages received from it, at one time."""

    at_s: float  # loop time
    delivered: int  # the last consumer sequence that the bus has sent; a redelivery has its own
    received: int  # the last consumer sequence received
    stuck: int | None  # stream sequence of the oldest unacknowledged message, if it came and is not held any more


def shows_loss(before: Check, now: Check) -> bool:
    """Whether a message, or an acknowledgement, that was absent at the first check is still absent at the second."""
    is_delivery_lost = now.received == before.received < before.delivered
    is_acknowledgement_lost = now.stuck is not None and now.stuck == before.stuck
    return is_delivery_lost or is_acknowledgement_lost


class DeliveryWatch:
    """Compares the messages that one consumer has delivered with those that arrived."""

    def __init__(self, bus: Bus, stream: str, consumer: str, will_acknowledge: Callable[[int], bool]) -> None:
        """`will_acknowledge(sequence)`: whether the scheduler has that message of the stream and will acknowledge it
        at its end."""
        self._bus = bus
        self._stream = stream
        self._consumer = consumer
        self._will_acknowledge = will_acknowledge
        self._created: datetime | None = None  # when the consumer was created; None: not known, so no loss is noticed
        self._consumer_sequence = self._stream_sequence = 0  # the highest ones received
        self._first_sequence = 0  # the first one of the stream that this consumer delivered
        self._pause_s, self._paused_until_s = CHECK_S, 0.0  # length of the pause after the next loss; loop time
        self._has_gap = False  # a later message came without an earlier one: a loss that needs no second check
        self._before: Check | None = None
        self._lost = asyncio.Event()

    def stop(self) -> None:
        """Notice no loss until `start`: the consumer is about to be created again."""
        self._created = self._before = None
        self._lost.clear()

    def start(self, consumer: ConsumerInfo) -> None:
        """The consumer is created, and counts its deliveries from one."""
        self._consumer_sequence = self._stream_sequence = self._first_sequence = 0
        self._created, self._has_gap = consumer.created, False

    def note(self, msg: Msg) -> None:
        """A message has arrived."""
        sequence = msg.metadata.sequence
        self._has_gap |= sequence.consumer > self._consumer_sequence + 1
        self._consumer_sequence = max(self._consumer_sequence, sequence.consumer)
        self._stream_sequence = max(self._stream_sequence, sequence.stream)
        self._first_sequence = self._first_sequence or sequence.stream

    async def wait_for_loss(self) -> None:
        """Wait until something was lost: a delivery, or the acknowledgement of the oldest message."""
        await self._lost.wait()
        self._lost.clear()

    async def check(self, _look: Look) -> None:
        """Compare the consumer's state with what has arrived."""
        before, now_s = self._before, asyncio.get_running_loop().time()
        is_due = before is None or now_s >= before.at_s + CHECK_S
        if self._created is None or now_s < self._paused_until_s or not (is_due or self._has_gap):
            return
        if (now := await self._read()) is None:
            return
        if self._has_gap or (before is not None and shows_loss(before, now)):
            log.warning("messages of requests lost on the bus", delivered=now.delivered, received=now.received)
            self.stop()
            self._paused_until_s = now.at_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            self._lost.set()
            return
        if before is not None:  # two checks in a row without a loss
            self._pause_s = CHECK_S
        self._before = now

    async def _read(self) -> Check | None:
        """Returns: None if the consumer does not answer, or was created again meanwhile."""
        at_s, received = asyncio.get_running_loop().time(), self._consumer_sequence
        try:
            info = await self._bus.js.consumer_info(self._stream, self._consumer)
        except BUS_ERRORS:
            return None
        if info.created != self._created:
            return None
        delivered = info.delivered.consumer_seq if info.delivered is not None else 0
        oldest = None
        if info.ack_floor is not None and info.num_ack_pending:
            # A server that begins to lead the consumer may have a floor of 0 until the first acknowledgement.
            oldest = max(info.ack_floor.stream_seq + 1, self._first_sequence)
        if oldest is not None and (oldest > self._stream_sequence or self._will_acknowledge(oldest)):
            oldest = None
        return Check(at_s, delivered, received, oldest)
