"""The reconfigurator's metrics, as Prometheus reads them."""

from collections import Counter as Count
from collections.abc import Sequence
from functools import partial
from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanRecord, PlanState

NAME = "dilaserve_reconfigurator"
SOLVE_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ReconfiguratorMetrics:
    """One registry per reconfigurator. Gauges of the plan are NaN before the first."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        gauge = partial(Gauge, registry=registry)
        self._rows = Counter(f"{NAME}_rows", "Messages written to Postgres", ["stream"], registry=registry)
        self._plans = Counter(
            f"{NAME}_plans", "Decisions and plans by how they ended", ["state", "status"], registry=registry
        )
        self._solve = Histogram(
            f"{NAME}_solve_seconds", "Time that making a plan takes", buckets=SOLVE_S, registry=registry
        )
        self._decided = gauge(f"{NAME}_decided_timestamp_seconds", "When the last decision was made, Unix time")
        self._threshold = gauge(f"{NAME}_planned_mean_threshold", "Mean threshold of the last plan")
        self._instances = gauge(f"{NAME}_instances", "Planned instances", ["tp_degree"])
        self.wanted_gpus = gauge(f"{NAME}_wanted_gpus", "GPUs that the recent workload needs")
        self.wanted_gpus.set(nan)
        self._decided.set(nan)
        self._threshold.set(nan)

    def wrote(self, stream: str, rows: int) -> None:
        self._rows.labels(stream).inc(rows)

    def decided(self, record: PlanRecord, target: Sequence[InstanceSpec] | None = None) -> None:
        """A decision was made; it is not carried out yet. `target` is that of a transition in progress."""
        self._decided.set(record.decided_s)
        if record.solve_s is not None:
            self._solve.observe(record.solve_s)
        if record.mean_threshold is not None:
            self._threshold.set(record.mean_threshold)
        self._instances.clear()
        kept = record.before if target is None else target
        specs = record.target if record.state is PlanState.RUNNING else kept
        for tp, count in Count(spec.tp for spec in specs).items():
            self._instances.labels(tp).set(count)

    def ended(self, record: PlanRecord) -> None:
        """A decision changed nothing, or a plan is done or has failed."""
        self._plans.labels(record.state.value, record.status or "none").inc()
