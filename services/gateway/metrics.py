"""The gateway's Prometheus metrics. Units: seconds, tokens."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shared.messages.requests import Outcome

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class GatewayMetrics:
    """Has a registry of its own, so that two gateways in one process do not share metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        name = "dilaserve_gateway"
        self.active = Gauge(f"{name}_active_requests", "Requests without an outcome", registry=self.registry)
        self._requests = Counter(f"{name}_requests", "Requests by outcome", ["outcome"], registry=self.registry)
        self._tokens = Counter(f"{name}_tokens", "Tokens of completed requests", ["kind"], registry=self.registry)
        self._latency = Histogram(
            f"{name}_latency_seconds",
            "From the request's body to its outcome",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self._first_text = Histogram(
            f"{name}_first_text_seconds",
            "From the request's body to its first committed text, for streams",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def not_completed(self, reason: str) -> None:
        """Count a request that was refused, failed or left by its client."""
        self._requests.labels(reason).inc()

    def completed(self, outcome: Outcome, latency_s: float) -> None:
        self._requests.labels(outcome.status.value).inc()
        self._tokens.labels("prompt").inc(outcome.prompt_tokens)
        self._tokens.labels("completion").inc(outcome.completion_tokens)
        self._latency.observe(latency_s)

    def first_text(self, latency_s: float) -> None:
        self._first_text.observe(latency_s)

    def text(self) -> bytes:
        """All metrics in the exposition format."""
        return generate_latest(self.registry)
