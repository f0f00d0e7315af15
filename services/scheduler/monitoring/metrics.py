"""The scheduler's metrics, as Prometheus reads them: observed once a cycle, a result message, or a request.

Counts and loads that the scheduler tells of on the bus are not counted again (stats_metrics.py).
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.scheduler.events import FinishRequest
from services.scheduler.monitoring.stats_metrics import NAME, StatsCollector
from shared.arrays import unpack_float32
from shared.messages.requests import OutcomeStatus, ServingStats
from shared.messages.stats import SchedulerStats
from shared.metrics import SIZE_BUCKETS, TIME_BUCKETS

WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SLACK_S = (-60, -30, -10, -5, -2.5, -1, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
THRESHOLDS = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1)
ERRORS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2)


class SchedulerMetrics:
    """One registry for each scheduler."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._stats = StatsCollector()
        self.registry.register(self._stats)
        self._cycle = self._histogram("cycle_seconds", "Time that a decision cycle takes", TIME_BUCKETS)
        self._delay = self._histogram("results_delay_seconds", "From a worker's sending results to here", TIME_BUCKETS)
        self._first_step = self._histogram("first_step_seconds", "From a request's arrival to its first step", WAIT_S)
        self._slack = self._histogram("slo_slack_seconds", "Left of the SLO at the last token; below 0: late", SLACK_S)
        self._steps = self._histogram("request_steps", "Denoising steps of a request", SIZE_BUCKETS)
        self._recompute = self._histogram("request_recompute_steps", "Recompute steps of a request", SIZE_BUCKETS)
        self._cache = self._histogram("request_cache_steps", "Cache steps of a request", SIZE_BUCKETS)
        self._predicted = self._histogram(
            "request_predicted_steps", "Steps of a request, by the predictor's first answer", SIZE_BUCKETS
        )
        self._error = Histogram(
            f"{NAME}_prediction_error_ratio",
            "|predicted - actual| / actual steps of a request, whose output was computed whole or ended early",
            ["output"],
            buckets=ERRORS,
            registry=self.registry,
        )
        self._threshold = self._histogram(
            "request_threshold", "Mean threshold of a request, weighted by tokens unmasked", THRESHOLDS
        )
        self._steps_at = Counter(
            f"{NAME}_threshold_steps", "Steps of requests that have ended", ["threshold"], registry=self.registry
        )

    def told(self, stats: SchedulerStats) -> None:
        """What the scheduler said of itself last."""
        self._stats.last = stats

    def cycled(self, cycle_s: float) -> None:
        self._cycle.observe(cycle_s)

    def results_came(self, delay_s: float) -> None:
        """Clocks of different machines may differ; a delay is never below 0."""
        self._delay.observe(max(0.0, delay_s))

    def ended(self, finish: FinishRequest) -> None:
        """A request that has ended; only of those completed it is told how they were served."""
        if finish.status is not OutcomeStatus.COMPLETED or finish.stats is None:
            return
        if finish.decisions is not None and finish.decisions.first_step == 0:
            self._first_step.observe(unpack_float32(finish.decisions.at_s)[0])
        self._served(finish.stats)
        if finish.stats.predicted_steps is not None:
            whole = finish.stats.unmasked_tokens == finish.arrived.output_length
            self._compare(finish.stats.predicted_steps, finish.stats.steps, "whole" if whole else "ended early")

    def _compare(self, predicted: float, actual: int, output: str) -> None:
        """A predictor cannot know where the text ends: it tells the steps of the whole output."""
        self._predicted.observe(predicted)
        self._error.labels(output).observe(abs(predicted - actual) / actual)

    def _served(self, stats: ServingStats) -> None:
        self._slack.observe(stats.slo_s - stats.latency_s)
        self._steps.observe(stats.steps)
        self._recompute.observe(stats.recompute_steps)
        self._cache.observe(stats.steps - stats.recompute_steps)
        self._threshold.observe(stats.mean_threshold)
        for use in stats.thresholds:
            self._steps_at.labels(f"{use.threshold:g}").inc(use.steps)

    def _histogram(self, name: str, told: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{NAME}_{name}", told, buckets=buckets, registry=self.registry)
