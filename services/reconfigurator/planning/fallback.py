"""The fallback if Stage 1 finds no plan: the smallest TP degree everywhere, which has the highest throughput."""

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

SMALLEST_TP = 0  # index


def fall_back(p: PlanInput, reason: str) -> Capacity:
    """The fallback's figures at the lowest threshold and the batch size of the highest throughput.

    Source: "Quality-Aware Capacity Planning", the fallback. Some class misses its SLO, or the workload exceeds the
    cluster's throughput.
    """
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
