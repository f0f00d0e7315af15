"""Records how one request ended, once, in the metrics and in the log."""

import time

import structlog

from services.gateway.metrics import GatewayMetrics
from shared.messages.requests import Outcome

log = structlog.get_logger(__name__)


class RequestRecorder:
    """The first end that is recorded counts."""

    def __init__(self, metrics: GatewayMetrics, request_id: str, start_s: float) -> None:
        """`start_s` is the time before the body was read, by time.perf_counter."""
        self._metrics = metrics
        self._log = log.bind(request_id=request_id)
        self._start_s = start_s
        self._ended = False

    def first_text(self) -> None:
        self._metrics.first_text(self._latency_s())

    def completed(self, outcome: Outcome) -> None:
        self._ended = True
        latency_s = self._latency_s()
        self._metrics.completed(outcome, latency_s)
        self._log.debug("request completed", latency_s=round(latency_s, 4))

    def not_completed(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._metrics.not_completed(reason)
            self._log.info("request not completed", reason=reason, latency_s=round(self._latency_s(), 4))

    def _latency_s(self) -> float:
        return time.perf_counter() - self._start_s
