"""What runs where Stage 1 has no plan: the smallest TP degree everywhere, which has the highest throughput."""

import numpy as np

from services.reconfigurator.planning.plan import Capacity, PlannedClass, PlanStatus
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.throughput import (
    LOWEST_THRESHOLD,
    best_batch,
    min_busy_instances,
    min_steps,
    times_sustained,
)

SMALLEST = 0  # the first TP degree


def fall_back(p: PlanInput, reason: str) -> Capacity:
    """Source: "Quality-Aware Capacity Planning", the fallback.

    Its figures are those of the lowest threshold at the batch size of the highest throughput: some class misses its
    SLO, or the workload is more than the cluster sustains.
    """
    degree = p.degrees[SMALLEST]
    of_kind_s = (min_steps(p)[j] * p.steps[j].L[SMALLEST, best_batch(p, j, SMALLEST)] for j in p.J)
    latency_s = sum(of_kind_s, np.zeros(len(p.names)))
    instances = {degree: sum(gpus // degree for gpus in p.nodes)}
    steps = p.O / p.T[LOWEST_THRESHOLD]
    lowest = float(p.thresholds[LOWEST_THRESHOLD])
    return Capacity(
        status=PlanStatus.FALLBACK,
        reason=reason,
        mean_threshold=lowest,
        slack_s=float(p.RPS @ (p.SLO - latency_s)),
        instances_per_tp=instances,
        busy_per_tp={degree: min_busy_instances(p, SMALLEST)},
        sustains=times_sustained(p, instances),
        classes=[
            PlannedClass(
                name=p.names[k],
                latency_s=float(latency_s[k]),
                steps_by_threshold={str(lowest): float(steps[k])},
                steps_by_tp={str(degree): float(steps[k])},
            )
            for k in p.K
        ],
    )
