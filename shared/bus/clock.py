"""The bus's clock, which the services of a cell share: their machines' own clocks may differ. Pure.

A time is a measured one of the bus plus the time since by the monotonic clock, so that a step of the machine's own
clock changes nothing either.
"""

import time
from datetime import datetime

import structlog

log = structlog.get_logger(__name__)

MIN_WARNING_S = 0.25  # difference to this machine's clock that is logged


class BusClock:
    """Shows this machine's time until it is set. A `BusWatch` sets it at each look."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()  # Unix time at which the monotonic clock was 0
        self._is_set = False

    def now_s(self) -> float:
        """Unix time by the bus's clock. Units: seconds."""
        return time.monotonic() + self._offset_s

    def set(self, answered: datetime, sent_s: float, received_s: float) -> None:
        """Set it by the time of an answer of the bus to a request. Units: seconds of the monotonic clock."""
        offset_s = answered.timestamp() - (sent_s + received_s) / 2
        if not self._is_set and abs(ahead_s := time.time() - offset_s - received_s) > MIN_WARNING_S:
            log.warning("this machine's clock differs from the bus's", ahead_s=round(ahead_s, 3))
        self._offset_s = corrected(self._offset_s if self._is_set else None, offset_s, (received_s - sent_s) / 2)
        self._is_set = True


def corrected(known_s: float | None, measured_s: float, error_s: float) -> float:
    """The known offset if a measurement with this error agrees with it, so that times do not jitter."""
    return known_s if known_s is not None and abs(measured_s - known_s) <= error_s else measured_s
