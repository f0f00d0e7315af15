"""The bus's clock, which the services of a cell share: their machines' own clocks may differ.

A time is a measured one of the bus plus the time since by the monotonic clock, so that a step of the machine's own
clock changes nothing either.
"""

import time
from datetime import datetime

import msgspec
import structlog

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.errors import BUS_ERRORS
from shared.errors import BadInput
from shared.tasks import pause

log = structlog.get_logger(__name__)

MEASURE_S = 10.0  # interval of measurements
FIRST_MEASURE_S = 1.0  # before the first one has succeeded
MIN_WARNING_S = 0.25  # difference to this machine's clock that is logged


class BusClock:
    """Shows this machine's time until the first measurement."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._offset_s = time.time() - time.monotonic()  # Unix time at which the monotonic clock was 0
        self._is_measured = False

    def now_s(self) -> float:
        """Unix time by the bus's clock. Units: seconds."""
        return time.monotonic() + self._offset_s

    async def run(self) -> None:
        """Measure regularly, until cancelled."""
        while True:
            await self.measure()
            await pause(MEASURE_S if self._is_measured else FIRST_MEASURE_S)

    async def measure(self) -> None:
        """Read the bus's clock; keep the last measurement if the bus does not answer."""
        subject, sent_s = f"$JS.API.STREAM.INFO.{self._bus.subjects.stream('REQUESTS')}", time.monotonic()
        try:
            answer = decode((await self._bus.nc.request(subject, b"{}")).data, _StreamInfo)
        except (*BUS_ERRORS, BadInput) as error:
            log.warning("clock of the bus not read", error=repr(error))
            return
        if answer.ts is None:  # NATS before 2.10, or the stream is not set up yet
            return
        received_s = time.monotonic()
        offset_s = answer.ts.timestamp() - (sent_s + received_s) / 2
        if not self._is_measured and abs(ahead_s := time.time() - offset_s - received_s) > MIN_WARNING_S:
            log.warning("this machine's clock differs from the bus's", ahead_s=round(ahead_s, 3))
        self._offset_s = corrected(self._offset_s if self._is_measured else None, offset_s, (received_s - sent_s) / 2)
        self._is_measured = True


def corrected(known_s: float | None, measured_s: float, error_s: float) -> float:
    """The known offset if a measurement with this error agrees with it, so that times do not jitter."""
    return known_s if known_s is not None and abs(measured_s - known_s) <= error_s else measured_s


class _StreamInfo(msgspec.Struct):
    """The part of a stream's description that is read."""

    ts: datetime | None = None  # time of the answer
