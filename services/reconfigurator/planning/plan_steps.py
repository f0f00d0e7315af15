"""Orders the launches of a plan; before each launch only the stops whose GPUs it needs."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from services.reconfigurator.planning.plan import Placement, PlanStep


def order_steps(
    current: Sequence[Placement], preserved: AbstractSet[int], starts: Sequence[Placement]
) -> list[PlanStep]:
    """Launch next the instance that takes the fewest GPUs from running instances, so that capacity falls late.

    Source: "Practical Consideration". `preserved` are indices into `current`. Instances whose GPUs no launch needs
    stop at the end.
    """
    running = {i: c for i, c in enumerate(current) if i not in preserved}
    holders = {(c.node, gpu): i for i, c in running.items() for gpu in c.gpus}
    waiting = list(starts)
    steps = []

    def blocking(start: Placement) -> list[int]:
        needed = [(start.node, gpu) for gpu in start.gpus]
        return sorted({holders[gpu] for gpu in needed if gpu in holders} & running.keys())

    while waiting:
        start = min(waiting, key=lambda s: sum(running[i].tp for i in blocking(s)))
        waiting.remove(start)
        stops = blocking(start)
        for i in stops:
            del running[i]
        steps.append(PlanStep(stop=stops, start=Placement(node=start.node, gpus=start.gpus, tp=start.tp)))
    if running:
        steps.append(PlanStep(stop=sorted(running)))
    return steps
