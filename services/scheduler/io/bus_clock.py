"""Corrects times by the differences between the clocks of producer, bus and scheduler.

A deadline counts from a producer's time and is compared with the scheduler's. The bus stamps each message in between.
Differences up to MAX_UNCORRECTED_S stay uncorrected, as they are mostly the delays of messages.
"""

import asyncio
import time
from datetime import datetime

import msgspec
import structlog

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.errors import BUS_ERRORS
from shared.errors import BadInput
from shared.messages.requests import Request

log = structlog.get_logger(__name__)

MAX_UNCORRECTED_S = 0.25
MEASURE_S = 10.0  # interval of measurements


class BusClock:
    """The difference between the bus's clock and this machine's."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.ahead_s = 0.0  # of the bus

    async def run(self) -> None:
        """Measure regularly, until cancelled."""
        while True:
            await asyncio.sleep(MEASURE_S)
            await self.measure()

    async def measure(self) -> None:
        """Keep the last difference if the bus does not answer."""
        subject, sent_s = f"$JS.API.STREAM.INFO.{self._bus.subjects.stream('REQUESTS')}", time.time()
        try:
            answer = decode((await self._bus.nc.request(subject, b"{}")).data, _StreamInfo)
        except (*BUS_ERRORS, BadInput) as error:
            log.warning("clock of the bus not read", error=repr(error))
            return
        if answer.ts is None:  # NATS before 2.10
            return
        received_s = time.time()
        ahead_s = answer.ts.timestamp() - (sent_s + received_s) / 2
        previous_s, self.ahead_s = self.ahead_s, _correction(ahead_s, error_s=(received_s - sent_s) / 2)
        if (self.ahead_s != 0.0) != (previous_s != 0.0):
            log.warning(
                "clock differs from the bus's" if self.ahead_s else "clock agrees with the bus's", ahead_s=ahead_s
            )


def arrival_time(request: Request, stored_s: float, ahead_s: float, now_s: float) -> float:
    """The request's arrival by this machine's clock, at most `now_s`.

    If the producer sent its own time too, `arrival_s` is corrected by its difference to the time of storage. A request
    that was published late then loses nothing of its SLO by that.
    Units: Unix time in seconds; `stored_s` by the bus's clock, which is `ahead_s` ahead of this machine's.
    """
    stored_here_s = stored_s - ahead_s
    if request.arrival_s is None:
        return min(now_s, stored_here_s)
    producer_ahead_s = 0.0 if request.sent_s is None else _correction(request.sent_s - stored_here_s)
    return min(now_s, request.arrival_s - producer_ahead_s)


def _correction(difference_s: float, error_s: float = 0.0) -> float:
    return difference_s if abs(difference_s) > MAX_UNCORRECTED_S + error_s else 0.0


class _StreamInfo(msgspec.Struct):
    """The part of a stream's description that is read."""

    ts: datetime | None = None  # time of the answer
