"""How much of a workload instances can serve at the lowest threshold and the best batch sizes. The fallback if Stage 1
finds no plan: the smallest TP degree everywhere, which has the highest throughput."""

from collections.abc import Mapping

import numpy as np

from services.reconfigurator.planning.plan import Capacity, PlannedClass, PlanStatus
from services.reconfigurator.planning.plan_input import PlanInput
from shared.arrays import Float64
from shared.messages.steps import StepKind

LOWEST_THRESHOLD = 0  # index
SMALLEST_TP = 0  # index


def min_steps(p: PlanInput) -> dict[StepKind, Float64]:
    """Steps of each kind per request at the lowest threshold, [K]."""
    total = p.O / p.T[LOWEST_THRESHOLD]
    if not p.cached:
        return {StepKind.RECOMPUTE: total}
    return {StepKind.RECOMPUTE: p.recomputes, StepKind.CACHE: total - p.recomputes}


def best_batch(p: PlanInput, j: StepKind, d: int) -> int:
    """The index of the batch size at which TP-d computes the most tokens per second."""
    return int(np.argmax(p.batches / p.steps[j].busy[d]))


def min_busy_instances(p: PlanInput, d: int) -> float:
    """The mean number of TP-d instances that the workload keeps busy if there are no others."""
    steps = min_steps(p)
    return float(sum(p.RPS[k] * steps[j][k] * p.busy_s(j, k, d, best_batch(p, j, d)) for j in p.J for k in p.K))


def times_sustained(p: PlanInput, instances: Mapping[int, int]) -> float:
    """How many times the workload these instances, by TP degree, can serve."""
    return sum(instances.get(degree, 0) / min_busy_instances(p, d) for d, degree in enumerate(p.degrees))


def fall_back(p: PlanInput, reason: str) -> Capacity:
    """The figures of the fallback. Source: "Quality-Aware Capacity Planning", the fallback."""
    degree = p.degrees[SMALLEST_TP]
    of_kind_s = (min_steps(p)[j] * p.steps[j].L[SMALLEST_TP, best_batch(p, j, SMALLEST_TP)] for j in p.J)
    latency_s = sum(of_kind_s, np.zeros(len(p.names)))
    instances = {degree: sum(gpus // degree for gpus in p.nodes)}
    steps = p.O / p.T[LOWEST_THRESHOLD]
    threshold = float(p.thresholds[LOWEST_THRESHOLD])
    return Capacity(
        status=PlanStatus.FALLBACK,
        reason=reason,
        mean_threshold=threshold,
        slack_s=float(p.RPS @ (p.SLO - latency_s)),
        instances_per_tp=instances,
        busy_per_tp={degree: min_busy_instances(p, SMALLEST_TP)},
        sustains=times_sustained(p, instances),
        classes=[
            PlannedClass(
                name=p.names[k],
                latency_s=float(latency_s[k]),
                steps_by_threshold={str(threshold): float(steps[k])},
                steps_by_tp={str(degree): float(steps[k])},
            )
            for k in p.K
        ],
    )
