"""The predictor's metrics, as Prometheus reads them."""

from prometheus_client import CollectorRegistry, Counter, Histogram, Info

from shared.metrics_server import SIZE_BUCKETS, TIME_BUCKETS

NAME = "dilaserve_predictor"


class PredictorMetrics:
    """One registry for each predictor."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        Info(NAME, "Which predictor answers", registry=self.registry).info({"version": version})
        self._batch = Histogram(
            f"{NAME}_batch_requests", "Requests predicted together", buckets=SIZE_BUCKETS, registry=self.registry
        )
        self._seconds = Histogram(
            f"{NAME}_batch_seconds", "Time that predicting them takes", buckets=TIME_BUCKETS, registry=self.registry
        )
        self.failed = Counter(f"{NAME}_query_faults", "Queries that raised an error", registry=self.registry)

    def answered(self, requests: int, seconds: float) -> None:
        """One pass through the model."""
        self._batch.observe(requests)
        self._seconds.observe(seconds)
