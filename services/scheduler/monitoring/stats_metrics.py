"""Exports the scheduler's latest SchedulerStats as Prometheus counters and gauges."""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.messages.stats import SchedulerStats

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


class StatsCollector(Collector):
    """Exports nothing before the first statistics. `collect` runs in another thread than the writer of `last`."""

    def __init__(self) -> None:
        self.last: SchedulerStats | None = None

    def collect(self) -> Iterator[Metric]:
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
