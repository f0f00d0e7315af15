"""Metrics under vLLM's names, for dashboards, autoscalers and `vllm bench serve`. All have the label `model_name`."""

from collections.abc import Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.messages.requests import Outcome
from shared.messages.stats import SchedulerStats
from shared.metrics_server import SIZE_BUCKETS

LABELS = ("model_name",)
FIRST_TOKEN_BUCKETS_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.4, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
REQUEST_BUCKETS_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class VllmMetrics:
    """The requests of one gateway and, for the gauges, of the cells that it serves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, labelnames=LABELS, registry=registry)
        counter = partial(Counter, labelnames=LABELS, registry=registry)

        def histogram(name: str, description: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, description, LABELS, buckets=buckets, registry=registry)

        self._running = gauge("vllm:num_requests_running", "Requests on an instance")
        self._waiting = gauge("vllm:num_requests_waiting", "Requests that wait for an instance")
        self._cache_use = gauge("vllm:kv_cache_usage_perc", "Share of the instances' room in tokens that is in use")
        self._success = Counter(
            "vllm:request_success", "Ended requests", [*LABELS, "finished_reason"], registry=registry
        )
        self._prompt_total = counter("vllm:prompt_tokens", "Prompt tokens of completed requests")
        self._text_total = counter("vllm:generation_tokens", "Text tokens of completed requests")
        self._queries = counter("vllm:prefix_cache_queries", "Prompt tokens that a prefix cache may have")
        self._hits = counter("vllm:prefix_cache_hits", "Prompt tokens that a prefix cache had")
        self._steps = counter("vllm:spec_decode_num_drafts", "Denoising steps")
        self._computed = counter("vllm:spec_decode_num_draft_tokens", "Tokens of the blocks of these steps")
        self._extra = counter("vllm:spec_decode_num_accepted_tokens", "Tokens they unmasked, less one for each step")
        self._prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", SIZE_BUCKETS)
        self._text = histogram("vllm:request_generation_tokens", "Text tokens of a request", SIZE_BUCKETS)
        self._first = histogram(
            "vllm:time_to_first_token_seconds", "From a stream's body to its first text", FIRST_TOKEN_BUCKETS_S
        )
        self._gap = histogram("vllm:inter_token_latency_seconds", "Between two texts of a stream", TOKEN_BUCKETS_S)
        self._per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Decode time by text tokens of a request", TOKEN_BUCKETS_S
        )
        self._latency = histogram(
            "vllm:e2e_request_latency_seconds", "From a request's body to its outcome", REQUEST_BUCKETS_S
        )
        self._queue = histogram(
            "vllm:request_queue_time_seconds", "From a request's arrival to its first step", REQUEST_BUCKETS_S
        )
        self._decode = histogram(
            "vllm:request_decode_time_seconds", "From a request's first step to its last token", REQUEST_BUCKETS_S
        )

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

    def first_text(self, model: str, after_s: float) -> None:
        self._first.labels(model).observe(after_s)

    def next_text(self, model: str, after_s: float) -> None:
        """A later text of a stream, `after_s` after the one before."""
        self._gap.labels(model).observe(after_s)

    def aborted(self, model: str) -> None:
        """A request ended without a completion."""
        self._success.labels(model, "abort").inc()

    def completed(self, model: str, outcome: Outcome, block_length: int, latency_s: float) -> None:
        """`block_length`: of the request; `latency_s`: from its body to its outcome."""
        prompt, text = outcome.prompt_tokens, outcome.completion_tokens
        self._success.labels(model, str(outcome.finish_reason or "stop")).inc()
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
