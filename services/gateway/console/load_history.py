"""The loads of the last hour: those of the last minutes in full, of the time before one per EVERY_S. Pure."""

from collections import deque

from services.gateway.console.cluster_view import LoadView

MAX_RECENT = 300  # one per second
MAX_OLDER = 360
EVERY_S = 10.0


class LoadHistory:
    def __init__(self) -> None:
        self._recent: deque[LoadView] = deque(maxlen=MAX_RECENT)
        self._older: deque[LoadView] = deque(maxlen=MAX_OLDER)  # also of the last minutes

    def add(self, load: LoadView) -> None:
        """Add the latest load."""
        self._recent.append(load)
        if not self._older or load.t_s >= self._older[-1].t_s + EVERY_S:
            self._older.append(load)

    def after(self, t_s: float) -> list[LoadView]:
        """The loads after this Unix time in seconds, the oldest first."""
        began_s = self._recent[0].t_s if self._recent else 0.0
        older = [load for load in self._older if t_s < load.t_s < began_s]
        return older + [load for load in self._recent if load.t_s > t_s]
