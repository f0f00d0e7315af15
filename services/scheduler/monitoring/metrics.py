"""The scheduler's Prometheus metrics. Histograms are observed once per cycle, result message or finished request;
counters and gauges repeat the last SchedulerStats."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.scheduler.events import FinishRequest
from shared.messages.requests import OutcomeStatus
from shared.messages.stats import SchedulerStats
from shared.metrics_server import SIZE_BUCKETS, TIME_BUCKETS

Family = type[CounterMetricFamily | GaugeMetricFamily]

NAME = "dilaserve_scheduler"
COUNTERS = {  # by the field of SchedulerStats
    "arrived": ("arrivals", "Requests received"),
    "slo_met": ("slo_met", "Requests completed within their SLO"),
    "migrations": ("migrations", "Moves of requests to another instance"),
    "steps": ("steps", "Denoising steps done"),
    "tokens": ("tokens", "Tokens unmasked"),
}
GAUGES = {
    "active": ("active_requests", "Active requests: running and deferred"),
    "deferred": ("deferred_requests", "Requests without room on any instance"),
    "infeasible": ("infeasible_requests", "Active requests whose SLO no threshold meets"),
    "waiting": ("waiting_requests", "Requests beyond those that the scheduler holds"),
    "oldest_queued_s": ("oldest_queued_seconds", "Age of the oldest late request without an instance"),
    "stalled_s": ("stalled_seconds", "Time without a step while requests are active"),
    "steps_in_flight": ("steps_in_flight", "Steps sent to instances and not answered yet"),
}
OUTCOMES = ("completed", "failed", "cancelled", "rejected", "refused")
LOADS = ("least", "committed", "capacity")

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


class SchedulerMetrics(Collector):
    """One registry per scheduler."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.last: SchedulerStats | None = None  # the latest statistics
        self.registry.register(self)
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

    def collect(self) -> Iterator[Metric]:
        """The last statistics as counters and gauges; nothing before the first. Runs in another thread than their
        writer."""
        stats = self.last
        if stats is None:
            return
        for field, (name, description) in COUNTERS.items():
            yield CounterMetricFamily(f"{NAME}_{name}", description, value=getattr(stats, field))
        for field, (name, description) in GAUGES.items():
            yield GaugeMetricFamily(f"{NAME}_{name}", description, value=getattr(stats, field))
        outcomes = {outcome: getattr(stats, outcome) for outcome in OUTCOMES}
        estimates = {"predictor": stats.predictions, "fallback": stats.predictor_fallbacks}
        num_open = sum(instance.open for instance in stats.instances)
        instances = {"open": num_open, "draining": len(stats.instances) - num_open}
        yield _family(CounterMetricFamily, "requests", "Requests that have ended", "outcome", outcomes)
        yield _family(CounterMetricFamily, "estimates", "Estimates of the steps left", "source", estimates)
        yield _family(GaugeMetricFamily, "instances", "Instances that serve", "state", instances)
        if stats.mean_threshold is not None:
            description = "Mean threshold of the last half minute, weighted by tokens unmasked"
            yield GaugeMetricFamily(f"{NAME}_mean_threshold", description, value=stats.mean_threshold)
        if stats.load is not None:
            loads = {load: getattr(stats.load, f"{load}_tokens") for load in LOADS}
            yield _family(GaugeMetricFamily, "load_tokens", "Tokens that load control compares", "of", loads)


def _family(kind: Family, name: str, description: str, label: str, values: Mapping[str, float]) -> Metric:
    family = kind(f"{NAME}_{name}", description, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family
