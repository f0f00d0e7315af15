"""How much of a workload instances can serve at the lowest threshold and the best batch sizes."""

from collections.abc import Mapping

import numpy as np

from services.reconfigurator.planning.plan_input import PlanInput
from shared.arrays import Float64
from shared.messages.steps import StepKind

LOWEST_THRESHOLD = 0  # index


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
