"""Notices requests, or acknowledgements of them, that were lost between the bus and the scheduler.

A server of a cluster that fails loses messages that it has sent or received. The server that replaces it would wait a
day for the acknowledgements of such messages (REQUEST_ACK_WAIT_S). So after a loss the caller creates the consumer
again: the bus then delivers all messages without acknowledgement again.
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

MIN_AGE_S = 2.0  # between the two checks that show a loss; an acknowledgement arrives within less time


@dataclass(frozen=True, slots=True)
class Check:
    """The consumer and the messages received from it, at one time."""

    at_s: float  # loop time
    delivered: int  # number of the last message that the bus has sent; a redelivery counts too
    received: int  # number of the last message received
    unacknowledged: int | None  # sequence in the stream of the oldest one; None: all are acknowledged, or will be


def shows_loss(before: Check, now: Check) -> bool:
    """Whether messages, or the acknowledgement of the oldest one, were lost before the first of two checks."""
    is_silent = now.received == before.received < before.delivered
    is_unacknowledged = now.unacknowledged is not None and now.unacknowledged == before.unacknowledged
    return is_silent or is_unacknowledged


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
        self._received = self._received_sequence = 0  # the highest number, and the highest sequence in the stream
        self._has_gap = False
        self._before: Check | None = None
        self._lost = asyncio.Event()

    def stop(self) -> None:
        """The consumer is about to be created again: what the old one has delivered no longer counts."""
        self._created = self._before = None
        self._lost.clear()

    def start(self, consumer: ConsumerInfo) -> None:
        """The consumer is created, and counts its deliveries from one."""
        self._received = self._received_sequence = 0
        self._created, self._has_gap = consumer.created, False

    def note(self, msg: Msg) -> None:
        """A message has arrived."""
        sequence = msg.metadata.sequence
        self._has_gap |= sequence.consumer > self._received + 1
        self._received = max(self._received, sequence.consumer)
        self._received_sequence = max(self._received_sequence, sequence.stream)

    async def wait_for_loss(self) -> None:
        """Wait until something was lost: a delivery, or the acknowledgement of the oldest message."""
        await self._lost.wait()
        self._lost.clear()

    async def check(self, _look: Look) -> None:
        """Compare the consumer's state with what has arrived."""
        before = self._before
        is_due = before is None or asyncio.get_running_loop().time() >= before.at_s + MIN_AGE_S
        if self._created is None or not (is_due or self._has_gap) or (now := await self._read()) is None:
            return
        if self._has_gap or (before is not None and shows_loss(before, now)):
            log.warning("messages of requests lost on the bus", delivered=now.delivered, received=now.received)
            self.stop()
            self._lost.set()
        else:
            self._before = now

    async def _read(self) -> Check | None:
        """Returns: None if the consumer does not answer, or is another one."""
        at_s, received = asyncio.get_running_loop().time(), self._received
        try:
            info = await self._bus.js.consumer_info(self._stream, self._consumer)
        except BUS_ERRORS:
            return None
        if info.created != self._created:
            return None
        delivered = info.delivered.consumer_seq if info.delivered is not None else 0
        oldest = info.ack_floor.stream_seq + 1 if info.ack_floor is not None and info.num_ack_pending else None
        if oldest is not None and (oldest > self._received_sequence or self._will_acknowledge(oldest)):
            oldest = None
        return Check(at_s, delivered, received, oldest)
