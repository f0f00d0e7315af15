"""How many GPUs a workload needs: the smallest cluster that serves it at a given mean threshold."""

from bisect import bisect_left
from collections.abc import Callable
from math import ceil

from services.reconfigurator.planning.plan import Capacity
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.stage1_capacity import find_capacity
from services.reconfigurator.planning.throughput import min_busy_instances, min_steps

MAX_GPUS = 4096  # of the largest cluster that is considered
TOLERANCE = 1e-6  # of a mean threshold


def smallest(suffices: Callable[[int], bool], at_least: int, at_most: int = MAX_GPUS) -> int | None:
    """The fewest GPUs that suffice, from `at_least` on; each higher number then does. None: `at_most` do not."""
    low, high = at_least - 1, at_least
    while not suffices(high):
        if high >= at_most:
            return None
        low, high = high, min(2 * high, at_most)
    return bisect_left(range(high), True, low + 1, key=suffices)


def gpus_for_threshold(p: PlanInput, min_threshold: float, gpus_per_node: int, time_limit_s: float) -> int | None:
    """The fewest GPUs with which Stage 1 meets every SLO at a mean threshold of at least `min_threshold`.

    Units: `time_limit_s` for each cluster size that is tried. Returns: None if MAX_GPUS do not suffice.
    """

    def suffices(gpus: int) -> bool:
        resized = p.resized(nodes_of(gpus, gpus_per_node))
        found = find_capacity(resized, time_limit_s)
        return isinstance(found, Capacity) and found.mean_threshold >= min_threshold - TOLERANCE

    return smallest(suffices, min_gpus(p)) if can_meet_slos(p) else None


def can_meet_slos(p: PlanInput) -> bool:
    steps = min_steps(p)
    return all(sum(steps[j][k] * p.steps[j].L.min() for j in p.J) <= p.SLO[k] for k in p.K)


def min_gpus(p: PlanInput) -> int:
    """The GPUs without which queues would grow even at the lowest threshold, and for one instance."""
    busy = min(degree * min_busy_instances(p, d) for d, degree in enumerate(p.degrees))
    return max(ceil(busy - TOLERANCE), *p.degrees[:1])


def nodes_of(gpus: int, gpus_per_node: int) -> tuple[int, ...]:
    """The GPUs of each node, all nodes full but the last."""
    full, rest = divmod(gpus, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())
