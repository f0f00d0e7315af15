"""The loads of the last hour: each second of the last five minutes, every ten seconds before. Pure."""

from collections import deque

from services.gateway.console.cluster_view import LoadView

OLDER_INTERVAL_S = 10.0  # between two kept loads of the hour
MAX_RECENT = 300  # one per second
MAX_HOUR = 360


class LoadHistory:
    def __init__(self) -> None:
        self._recent: deque[LoadView] = deque(maxlen=MAX_RECENT)
        self._hour: deque[LoadView] = deque(maxlen=MAX_HOUR)  # one per OLDER_INTERVAL_S

    def add(self, load: LoadView) -> None:
        self._recent.append(load)
        if not self._hour or load.t_s >= self._hour[-1].t_s + OLDER_INTERVAL_S:
            self._hour.append(load)

    def after(self, t_s: float) -> list[LoadView]:
        """The loads after this Unix time in seconds, the oldest first."""
        began_s = self._recent[0].t_s if self._recent else 0.0
        older = [load for load in self._hour if t_s < load.t_s < began_s]
        return older + [load for load in self._recent if load.t_s > t_s]
