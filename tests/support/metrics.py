"""Every metric that the services export, read from their registries."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric

from services.gateway.metrics import GatewayMetrics
from services.predictor.metrics import PredictorMetrics
from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.scheduler.monitoring.metrics import SchedulerMetrics
from services.worker.monitoring.metrics import WorkerMetrics
from shared.messages.stats import ClusterLoad
from tests.builders import instance, scheduler_stats

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",), "info": ("_info",)}


@dataclass(frozen=True, slots=True)
class Family:
    """A metric under its documented name, with the names of its samples."""

    name: str
    kind: str
    samples: tuple[str, ...]


def exported() -> list[Family]:
    """The metrics of all services."""
    return [_family(metric) for registry in _registries() for metric in registry.collect()]


def _registries() -> Iterator[CollectorRegistry]:
    scheduler = SchedulerMetrics()
    load = ClusterLoad(least_tokens=1, committed_tokens=2, capacity_tokens=3, throughput_tokens_per_s=1)
    scheduler.last = scheduler_stats(load=load)
    yield GatewayMetrics().registry
    yield scheduler.registry
    yield PredictorMetrics("v").registry
    yield WorkerMetrics(instance()).registry
    yield ReconfiguratorMetrics().registry


def _family(metric: Metric) -> Family:
    """A metric without label values has no samples yet; its type gives their names."""
    present = {sample.name for sample in metric.samples if not sample.name.endswith("_created")}
    names = present or {metric.name + suffix for suffix in SUFFIXES[metric.type]}
    shown = metric.name + SUFFIXES[metric.type][0] if metric.type != "histogram" else metric.name
    return Family(shown, metric.type, tuple(sorted(names)))
