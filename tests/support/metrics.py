"""Every metric that a service exports, read off the services' own registries."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric

from services.gateway.metrics import GatewayMetrics
from services.predictor.metrics import PredictorMetrics
from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.scheduler.monitoring.metrics import SchedulerMetrics
from services.worker.monitoring.metrics import WorkerMetrics
from tests.builders import instance, loaded_stats

SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_count", "_sum"),
    "gauge": ("",),
    "info": ("_info",),
}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, as the documents name it, and the names of its samples."""

    name: str
    kind: str
    samples: tuple[str, ...]


def exported() -> list[Family]:
    """Of all services, each with something to tell."""
    return [_family(metric) for registry in _registries() for metric in registry.collect()]


def _registries() -> Iterator[CollectorRegistry]:
    scheduler = SchedulerMetrics()
    scheduler.told(loaded_stats(0.0, 1.0))
    yield GatewayMetrics().registry
    yield scheduler.registry
    yield PredictorMetrics("v").registry
    yield WorkerMetrics(instance()).registry
    yield ReconfiguratorMetrics().registry


def _family(metric: Metric) -> Family:
    """Without a label's value there is no sample yet; what they will be called, the type says."""
    told = {sample.name for sample in metric.samples if not sample.name.endswith("_created")}
    names = told or {metric.name + suffix for suffix in SUFFIXES[metric.type]}
    shown = metric.name + SUFFIXES[metric.type][0] if metric.type != "histogram" else metric.name
    return Family(shown, metric.type, tuple(sorted(names)))
