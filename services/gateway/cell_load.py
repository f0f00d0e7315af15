"""The load of one cell, by the last statistics of its scheduler and the requests that this gateway has sent since."""

from services.gateway.readiness import Readiness
from services.gateway.routing import CellLoad
from shared.errors import RetryLater
from shared.messages.stats import SchedulerStats


class CellLoadTracker:
    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._stats: SchedulerStats | None = None  # from which `_sent` counts
        self._sent = 0

    def count(self) -> None:
        """Count a request that is sent to the cell."""
        self._follow()
        self._sent += 1

    def load(self) -> CellLoad:
        """Without a leading scheduler the cell counts as full: it accepts requests, and serves them later."""
        self._follow()
        stats = self._stats
        try:
            self._readiness.check_accepts()
        except RetryLater:
            return CellLoad(accepts=False)
        if stats is None:
            return CellLoad(sent=self._sent)
        return CellLoad(slack=stats.slack, requests=stats.active + stats.waiting, sent=self._sent)

    def _follow(self) -> None:
        if (stats := self._readiness.stats) is not self._stats:
            self._stats, self._sent = stats, 0
