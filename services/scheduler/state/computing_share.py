"""The share of a request's time at its instance in which iterations with it run, by the latest completed requests."""

from collections import deque

import numpy as np

MAX_ENDED = 256  # completed requests that count
MIN_ENDED = 20  # fewer do not count
MIN_SHARE = 0.25  # that the forecast expects at least, so that it stays optimistic


class ComputingShare:
    """The median over the latest completed requests; 1 before MIN_ENDED have completed."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=MAX_ENDED)

    def record(self, computing_s: float, served_s: float) -> None:
        """Count a completed request: the time of its iterations, and the time since its first step was sent."""
        if computing_s > 0:
            self._shares.append(computing_s / max(served_s, computing_s))

    @property
    def value(self) -> float:
        if len(self._shares) < MIN_ENDED:
            return 1.0
        return max(float(np.median(self._shares)), MIN_SHARE)
