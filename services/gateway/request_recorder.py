"""How one request ended, said once: in the metrics and in the log."""

import time

import structlog

from services.gateway.metrics import GatewayMetrics
from shared.messages.requests import Outcome

log = structlog.get_logger(__name__)


class RequestRecorder:
    """Of one request. The first end counts."""

    def __init__(self, metrics: GatewayMetrics, request_id: str, start_s: float) -> None:
        """`start_s` is when its body began to be read, by time.perf_counter."""
        self._metrics = metrics
        self._request_id = request_id
        self._start_s = start_s
        self._ended = False

    def first_text(self) -> None:
        self._metrics.first_text(time.perf_counter() - self._start_s)

    def completed(self, outcome: Outcome) -> None:
        self._ended = True
        latency_s = time.perf_counter() - self._start_s
        self._metrics.completed(outcome, latency_s)
        log.debug("request completed", request_id=self._request_id, latency_s=round(latency_s, 4))

    def failed(self, how: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._metrics.ended(how)
        latency_s = time.perf_counter() - self._start_s
        log.info("request not completed", request_id=self._request_id, how=how, latency_s=round(latency_s, 4))
