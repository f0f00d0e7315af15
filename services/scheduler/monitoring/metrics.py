"""The scheduler's Prometheus metrics. Histograms are observed once per cycle, result message or finished request;
counters and gauges repeat the last SchedulerStats (stats_metrics.py)."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.scheduler.events import FinishRequest
from services.scheduler.monitoring.stats_metrics import NAME, StatsCollector
from shared.messages.requests import OutcomeStatus
from shared.messages.stats import SchedulerStats
from shared.metrics_server import SIZE_BUCKETS, TIME_BUCKETS

WAIT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SLACK_BUCKETS_S = (-60, -30, -10, -5, -2.5, -1, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
THRESHOLD_BUCKETS = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1)
ERROR_BUCKETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2)
HISTOGRAMS = {
    "cycle_seconds": ("Duration of a decision cycle", TIME_BUCKETS),
    "results_delay_seconds": ("Time from a worker's sending of results to their receipt", TIME_BUCKETS),
    "first_step_seconds": ("Time from a request's arrival to its first step", WAIT_BUCKETS_S),
    "slo_slack_seconds": ("Remaining time of the SLO at the last token; negative: late", SLACK_BUCKETS_S),
    "request_steps": ("Denoising steps of a request", SIZE_BUCKETS),
    "request_recompute_steps": ("Recompute steps of a request", SIZE_BUCKETS),
    "request_cache_steps": ("Cache steps of a request", SIZE_BUCKETS),
    "request_predicted_steps": ("Steps of a request, by the predictor's first answer", SIZE_BUCKETS),
    "request_threshold": ("Mean threshold of a request, weighted by tokens unmasked", THRESHOLD_BUCKETS),
}


class SchedulerMetrics:
    """One registry per scheduler."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._stats = StatsCollector()
        self.registry.register(self._stats)
        self._histograms = {
            name: Histogram(f"{NAME}_{name}", description, buckets=buckets, registry=self.registry)
            for name, (description, buckets) in HISTOGRAMS.items()
        }
        self._prediction_error = Histogram(
            f"{NAME}_prediction_error_ratio",
            "|predicted - actual| / actual steps of a request, whose output was computed whole or ended early",
            ["output"],
            buckets=ERROR_BUCKETS,
            registry=self.registry,
        )
        self._threshold_steps = Counter(
            f"{NAME}_threshold_steps", "Steps of completed requests", ["threshold"], registry=self.registry
        )

    def set_stats(self, stats: SchedulerStats) -> None:
        """Export the scheduler's latest statistics."""
        self._stats.last = stats

    def observe(self, name: str, value: float) -> None:
        """Observe a value of one of HISTOGRAMS."""
        self._histograms[name].observe(value)

    def observe_finished(self, finish: FinishRequest) -> None:
        """Observe how a completed request was served."""
        stats, decisions = finish.stats, finish.decisions
        if finish.status is not OutcomeStatus.COMPLETED or stats is None:
            return
        if decisions is not None and (first_sent_s := decisions.first_sent_s) is not None:
            self.observe("first_step_seconds", first_sent_s)
        self.observe("slo_slack_seconds", stats.slo_s - stats.latency_s)
        self.observe("request_steps", stats.steps)
        self.observe("request_recompute_steps", stats.recompute_steps)
        self.observe("request_cache_steps", stats.steps - stats.recompute_steps)
        self.observe("request_threshold", stats.mean_threshold)
        for use in stats.thresholds:
            self._threshold_steps.labels(f"{use.threshold:g}").inc(use.steps)
        if stats.predicted_steps is not None:
            self.observe("request_predicted_steps", stats.predicted_steps)
            error = abs(stats.predicted_steps - stats.steps) / stats.steps
            is_whole = stats.unmasked_tokens == finish.arrived.free_tokens  # as the predictor assumes every output is
            self._prediction_error.labels("whole" if is_whole else "ended early").observe(error)
