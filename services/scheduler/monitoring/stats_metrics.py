"""What the scheduler says of itself on the bus once a second, in the words of Prometheus. Counts nothing itself."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.messages.stats import SchedulerStats

NAME = "dilaserve_scheduler"
COUNTERS = {  # by the field of SchedulerStats
    "arrived": ("arrivals", "Requests taken in"),
    "slo_met": ("slo_met", "Requests completed within their SLO"),
    "migrations": ("migrations", "Moves of requests to another instance"),
    "steps": ("steps", "Denoising steps done"),
    "tokens": ("tokens", "Tokens unmasked"),
}
GAUGES = {
    "active": ("active_requests", "Requests held: running and deferred"),
    "deferred": ("deferred_requests", "Requests that no instance has room for"),
    "steps_in_flight": ("steps_in_flight", "Steps that instances have and have not answered"),
}
OUTCOMES = ("completed", "failed", "cancelled")
LOADS = ("least", "committed", "capacity")


class StatsCollector(Collector):
    """Shows nothing until the scheduler leads its cell. Read from another thread than `last` is written by."""

    def __init__(self) -> None:
        self.last: SchedulerStats | None = None

    def collect(self) -> Iterator[Metric]:
        stats = self.last
        if stats is None:
            return
        for field, (name, told) in COUNTERS.items():
            yield CounterMetricFamily(f"{NAME}_{name}", told, value=getattr(stats, field))
        for field, (name, told) in GAUGES.items():
            yield GaugeMetricFamily(f"{NAME}_{name}", told, value=getattr(stats, field))
        ended = CounterMetricFamily(f"{NAME}_requests", "Requests that have ended", labels=["outcome"])
        for outcome in OUTCOMES:
            ended.add_metric([outcome], getattr(stats, outcome))
        estimates = CounterMetricFamily(f"{NAME}_estimates", "Estimates of the steps left", labels=["source"])
        estimates.add_metric(["predictor"], stats.predictions)
        estimates.add_metric(["fallback"], stats.predictor_fallbacks)
        yield from (ended, estimates, _instances(stats))
        if stats.mean_threshold is not None:
            told = "Mean threshold of the last half minute, weighted by tokens unmasked"
            yield GaugeMetricFamily(f"{NAME}_mean_threshold", told, value=stats.mean_threshold)
        if stats.load is not None:
            yield _load(stats)


def _instances(stats: SchedulerStats) -> Metric:
    family = GaugeMetricFamily(f"{NAME}_instances", "Instances that serve", labels=["state"])
    opened = sum(instance.open for instance in stats.instances)
    family.add_metric(["open"], opened)
    family.add_metric(["draining"], len(stats.instances) - opened)
    return family


def _load(stats: SchedulerStats) -> Metric:
    family = GaugeMetricFamily(f"{NAME}_load_tokens", "What load control judges by", labels=["of"])
    for load in LOADS:
        family.add_metric([load], getattr(stats.load, f"{load}_tokens"))
    return family
