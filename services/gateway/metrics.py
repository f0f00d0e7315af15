"""The gateway's Prometheus metrics, its own and those under vLLM's names, and the record of each request's end.

Units: seconds, tokens. vLLM's are for dashboards, autoscalers and `vllm bench serve`; all have the label `model_name`.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.gateway.ready_reasons import CODES, Reason, Storage
from shared.messages.requests import Outcome, Request
from shared.messages.stats import SchedulerStats
from shared.metrics_server import SIZE_BUCKETS

LABELS = ("model_name",)
FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.4, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
REQUEST_BUCKETS_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class VllmMetrics:
    """The requests of one gateway and, for the gauges, of the cells that it serves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"vllm:{name}", what, LABELS, registry=registry)

        def counter(name: str, what: str, *more_labels: str) -> Counter:
            return Counter(f"vllm:{name}", what, (*LABELS, *more_labels), registry=registry)

        def histogram(name: str, what: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"vllm:{name}", what, LABELS, buckets=buckets, registry=registry)

        self._running = gauge("num_requests_running", "Requests on an instance")
        self._waiting = gauge("num_requests_waiting", "Requests that wait for an instance")
        self._cache_use = gauge("kv_cache_usage_perc", "Share of the instances' room in tokens that is in use")
        self.success = counter("request_success", "Ended requests", "finished_reason")
        self._prompt_total = counter("prompt_tokens", "Prompt tokens of completed requests")
        self._text_total = counter("generation_tokens", "Text tokens of completed requests")
        self._queries = counter("prefix_cache_queries", "Prompt tokens that a prefix cache may have")
        self._hits = counter("prefix_cache_hits", "Prompt tokens that a prefix cache had")
        self._steps = counter("spec_decode_num_drafts", "Denoising steps")
        self._computed = counter("spec_decode_num_draft_tokens", "Tokens of the blocks of these steps")
        self._extra = counter("spec_decode_num_accepted_tokens", "Tokens they unmasked, less one for each step")
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of a request", SIZE_BUCKETS)
        self._text = histogram("request_generation_tokens", "Text tokens of a request", SIZE_BUCKETS)
        first, gap = "From a stream's body to its first text", "Between two texts of a stream"
        self.first_text = histogram("time_to_first_token_seconds", first, FIRST_TOKEN_BUCKETS_S)
        self.next_text = histogram("inter_token_latency_seconds", gap, TOKEN_BUCKETS_S)
        per_token, whole = "Decode time by text tokens of a request", "From a request's body to its outcome"
        self._per_token = histogram("request_time_per_output_token_seconds", per_token, TOKEN_BUCKETS_S)
        self._latency = histogram("e2e_request_latency_seconds", whole, REQUEST_BUCKETS_S)
        queued, decode = "From a request's arrival to its first step", "From a request's first step to its last token"
        self._queue = histogram("request_queue_time_seconds", queued, REQUEST_BUCKETS_S)
        self._decode = histogram("request_decode_time_seconds", decode, REQUEST_BUCKETS_S)

    def set_load(self, stats_of: Mapping[str, Sequence[SchedulerStats]]) -> None:
        """Export the load of each model. `stats_of`: those of its cells that have a leading scheduler."""
        gauges = self._running, self._waiting, self._cache_use
        for gauge in gauges:
            gauge.clear()
        for model, cells in stats_of.items():
            if cells:
                room = sum(instance.max_tokens for stats in cells for instance in stats.instances)
                used = sum(instance.tokens for stats in cells for instance in stats.instances)
                running = sum(stats.active - stats.deferred for stats in cells)
                waiting = sum(stats.deferred + stats.waiting for stats in cells)
                values = running, waiting, used / room if room else 0.0
                for gauge, value in zip(gauges, values, strict=True):
                    gauge.labels(model).set(value)

    def completed(self, model: str, outcome: Outcome, block_length: int, latency_s: float) -> None:
        """`block_length`: of the request; `latency_s`: from its body to its outcome."""
        prompt, text = outcome.prompt_tokens, outcome.completion_tokens
        self.success.labels(model, str(outcome.finish_reason or "stop")).inc()
        self._prompt_total.labels(model).inc(prompt)
        self._text_total.labels(model).inc(text)
        self._prompt.labels(model).observe(prompt)
        self._text.labels(model).observe(text)
        self._latency.labels(model).observe(latency_s)
        if (stats := outcome.stats) is None:
            return
        self._queries.labels(model).inc(prompt)
        self._hits.labels(model).inc(stats.cached_tokens)
        self._steps.labels(model).inc(stats.steps)
        self._computed.labels(model).inc(stats.steps * block_length)
        self._extra.labels(model).inc(max(0, stats.unmasked_tokens - stats.steps))
        if outcome.decisions is not None and (queued_s := outcome.decisions.first_sent_s) is not None:
            decode_s = max(0.0, stats.latency_s - queued_s)
            self._queue.labels(model).observe(queued_s)
            self._decode.labels(model).observe(decode_s)
            self._per_token.labels(model).observe(decode_s / max(1, text))


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
            self._metrics.requests.labels(reason).inc()
            self._metrics.vllm.success.labels(self._model, "abort").inc()
            request_id, latency_s = self._request.request_id, round(self._latency_s(), 4)
            log.info("request not completed", request_id=request_id, reason=reason, latency_s=latency_s)

    def _latency_s(self) -> float:
        return time.perf_counter() - self._start_s
