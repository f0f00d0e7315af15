"""The order of a reconfiguration: launch after launch, before each only the stops whose GPUs it needs."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from services.reconfigurator.planning.plan import Placement, PlanStep


def order_steps(
    current: Sequence[Placement], preserved: AbstractSet[int], starts: Sequence[Placement]
) -> list[PlanStep]:
    """Launch next what takes the fewest GPUs from instances that still run, so that capacity falls as late as can be.

    Source: "Practical Consideration". `preserved` are indices into `current`. What is to go and in nobody's way stops
    at the end.
    """
    running = {i: c for i, c in enumerate(current) if i not in preserved}
    holder = {(c.node, gpu): i for i, c in running.items() for gpu in c.gpus}
    waiting = list(starts)
    steps = []

    def in_the_way(start: Placement) -> list[int]:
        return sorted({holder[start.node, gpu] for gpu in start.gpus if (start.node, gpu) in holder} & running.keys())

    while waiting:
        start = min(waiting, key=lambda s: sum(running[i].tp for i in in_the_way(s)))
        waiting.remove(start)
        stops = in_the_way(start)
        for i in stops:
            del running[i]
        steps.append(PlanStep(stop=stops, start=Placement(node=start.node, gpus=start.gpus, tp=start.tp)))
    if running:
        steps.append(PlanStep(stop=sorted(running)))
    return steps
