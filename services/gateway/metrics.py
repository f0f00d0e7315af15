"""The gateway's Prometheus metrics, and the record of each request's end. Units: seconds, tokens."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import nan

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.gateway.ready_reasons import CODES, Reason, Storage
from services.gateway.vllm_metrics import VllmMetrics
from shared.messages.requests import Outcome, Request

log = structlog.get_logger(__name__)

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class GatewayMetrics:
    """Has a registry of its own, so that two gateways in one process do not share metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        name = "dilaserve_gateway"
        self.active = Gauge(f"{name}_active_requests", "Requests without an outcome", registry=self.registry)
        self.requests = Counter(f"{name}_requests", "Requests by outcome", ["outcome"], registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self._not_ready = gauge(f"{name}_not_ready", "1 for each reason why requests cannot be served", ["reason"])
        self._stored = gauge(f"{name}_stored_bytes", "Bytes of a stream of the bus", ["stream"])
        self._max_stored = gauge(f"{name}_max_stored_bytes", "Most bytes of a stream of the bus", ["stream"])
        self._free = gauge(f"{name}_bus_free_bytes", "Free bytes on the disk of the bus; NaN: unknown")
        self._free.set(nan)
        self.tokens = Counter(f"{name}_tokens", "Tokens of completed requests", ["kind"], registry=self.registry)
        histogram = partial(Histogram, buckets=LATENCY_BUCKETS_S, registry=self.registry)
        self.latency = histogram(f"{name}_latency_seconds", "From the request's body to its outcome")
        self.first_text = histogram(f"{name}_first_text_seconds", "From a stream's body to its first committed text")
        self.vllm = VllmMetrics(self.registry)

    def set_readiness(self, reasons: Iterable[Reason], storage: Storage) -> None:
        """Export why requests cannot be served, and the last look at the bus's storage."""
        found = {reason.code for reason in reasons}
        for code in CODES:
            self._not_ready.labels(code).set(code in found)
        for kind, stream in storage.streams.items():
            self._stored.labels(kind).set(stream.state.bytes)
            if stream.config.max_bytes > 0:
                self._max_stored.labels(kind).set(stream.config.max_bytes)
        if storage.free_bytes is not None:
            self._free.set(storage.free_bytes)

    def not_completed(self, reason: str) -> None:
        """Count a request that was refused, failed or left by its client."""
        self.requests.labels(reason).inc()


@dataclass(slots=True)
class RequestRecorder:
    """Records the first end of one request in the metrics and in the log."""

    _metrics: GatewayMetrics
    _model: str
    _request: Request
    _start_s: float  # before the body was read, by time.perf_counter
    _text_s: float | None = None  # from then to the last text of a stream
    _ended: bool = False

    def text_sent(self) -> None:
        now_s = self._latency_s()
        if self._text_s is None:
            self._metrics.first_text.observe(now_s)
            self._metrics.vllm.first_text.labels(self._model).observe(now_s)
        else:
            self._metrics.vllm.next_text.labels(self._model).observe(now_s - self._text_s)
        self._text_s = now_s

    def completed(self, outcome: Outcome) -> None:
        self._ended = True
        latency_s = self._latency_s()
        self._metrics.vllm.completed(self._model, outcome, self._request.block_length, latency_s)
        self._metrics.requests.labels(outcome.status.value).inc()
        self._metrics.tokens.labels("prompt").inc(outcome.prompt_tokens)
        self._metrics.tokens.labels("completion").inc(outcome.completion_tokens)
        self._metrics.latency.observe(latency_s)
        log.debug("request completed", request_id=self._request.request_id, latency_s=round(latency_s, 4))

    def not_completed(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._metrics.not_completed(reason)
            self._metrics.vllm.success.labels(self._model, "abort").inc()
            request_id, latency_s = self._request.request_id, round(self._latency_s(), 4)
            log.info("request not completed", request_id=request_id, reason=reason, latency_s=latency_s)

    def _latency_s(self) -> float:
        return time.perf_counter() - self._start_s
