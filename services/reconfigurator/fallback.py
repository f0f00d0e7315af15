"""What runs where Stage 1 has no plan: the smallest TP degree everywhere, which has the highest throughput."""

import numpy as np

from services.reconfigurator.plan import Capacity, PlannedClass, Status
from services.reconfigurator.plan_input import PlanInput
from shared.arrays import Float64
from shared.messages.steps import StepKind

LOWEST, SMALLEST = 0, 0  # the first threshold and TP degree


def fall_back(p: PlanInput, reason: str) -> Capacity:
    """Source: "Quality-Aware Capacity Planning", the fallback.

    Its figures are those of the lowest threshold at the batch size of the highest throughput: some class misses its
    SLO, or the workload is more than the cluster sustains.
    """
    kinds = _steps(p)
    degree = p.degrees[SMALLEST]
    best = {j: int(np.argmax(p.batches / p.steps[j].L[SMALLEST])) for j in p.J}
    latency_s = sum((kinds[j] * p.steps[j].L[SMALLEST, best[j]] for j in p.J), np.zeros(len(p.names)))
    busy = sum(p.RPS[k] * kinds[j][k] * p.busy_s(j, k, SMALLEST, best[j]) for j in p.J for k in p.K)
    steps = p.O / p.T[LOWEST]
    lowest = float(p.thresholds[LOWEST])
    return Capacity(
        status=Status.FALLBACK,
        reason=reason,
        mean_threshold=lowest,
        slack_s=float(p.RPS @ (p.SLO - latency_s)),
        instances_per_tp={degree: sum(gpus // degree for gpus in p.nodes)},
        busy_per_tp={degree: float(busy)},
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


def _steps(p: PlanInput) -> dict[StepKind, Float64]:
    """Steps of each kind, [K], at the lowest threshold."""
    total = p.O / p.T[LOWEST]
    if not p.cached:
        return {StepKind.RECOMPUTE: total}
    blocks = p.O / p.block_length
    return {StepKind.RECOMPUTE: blocks, StepKind.CACHE: total - blocks}
