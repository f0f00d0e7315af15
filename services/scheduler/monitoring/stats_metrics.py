"""Exports the scheduler's latest SchedulerStats as Prometheus counters and gauges."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.messages.stats import SchedulerStats

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
    "steps_in_flight": ("steps_in_flight", "Steps sent to instances and not answered yet"),
}
OUTCOMES = ("completed", "failed", "cancelled")
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
        ended = CounterMetricFamily(f"{NAME}_requests", "Requests that have ended", labels=["outcome"])
        for outcome in OUTCOMES:
            ended.add_metric([outcome], getattr(stats, outcome))
        estimates = CounterMetricFamily(f"{NAME}_estimates", "Estimates of the steps left", labels=["source"])
        estimates.add_metric(["predictor"], stats.predictions)
        estimates.add_metric(["fallback"], stats.predictor_fallbacks)
        yield from (ended, estimates, _instances(stats))
        if stats.mean_threshold is not None:
            description = "Mean threshold of the last half minute, weighted by tokens unmasked"
            yield GaugeMetricFamily(f"{NAME}_mean_threshold", description, value=stats.mean_threshold)
        if stats.load is not None:
            yield _load(stats)


def _instances(stats: SchedulerStats) -> Metric:
    family = GaugeMetricFamily(f"{NAME}_instances", "Instances that serve", labels=["state"])
    opened = sum(instance.open for instance in stats.instances)
    family.add_metric(["open"], opened)
    family.add_metric(["draining"], len(stats.instances) - opened)
    return family


def _load(stats: SchedulerStats) -> Metric:
    family = GaugeMetricFamily(f"{NAME}_load_tokens", "Tokens that load control compares", labels=["of"])
    for load in LOADS:
        family.add_metric([load], getattr(stats.load, f"{load}_tokens"))
    return family
