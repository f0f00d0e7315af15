"""How instances fit on nodes, counted by kind of node: nodes with equally many GPUs are interchangeable. Fills the GPUs
that Stage 1 leaves unused.

A *filling* of a node is a count of instances of each TP degree that fit on it and leave no room for another. A model of
the cluster counts the nodes with each filling, so it grows with the kinds of node and not with the nodes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil

import msgspec
import pyomo.environ as pyo

from services.reconfigurator.planning.plan import Capacity
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.solver import solve
from services.reconfigurator.planning.throughput import times_sustained

MIN_BUSY = 1e-6  # instances; a degree kept busy by fewer serves nothing
TIME_LIMIT_S = 5.0


def fillings(gpus: int, degrees: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every filling of a node: instances of each degree. Degrees ascend."""
    *smaller, largest = degrees
    if not smaller:
        yield (gpus // largest,)
        return
    for count in range(gpus // largest + 1):
        for rest in fillings(gpus - count * largest, smaller):
            yield (*rest, count)


def add_nodes(m: pyo.ConcreteModel, nodes: Sequence[int], degrees: Sequence[int]) -> None:
    """Add the expressions `held` [D], instances by TP degree; `nodes`: GPUs of each. Source: "Node GPU Capacity"."""
    nodes_by_gpus = Counter(nodes)
    ways = [(gpus, counts) for gpus in nodes_by_gpus for counts in fillings(gpus, degrees)]
    index = range(len(ways))
    m.v = pyo.Var(index, domain=pyo.NonNegativeIntegers, doc="nodes with this filling")
    m.filled = pyo.Constraint(
        list(nodes_by_gpus),
        doc="one filling per node",
        rule=lambda m, gpus: pyo.quicksum(m.v[i] for i in index if ways[i][0] == gpus) == nodes_by_gpus[gpus],
    )
    m.held = pyo.Expression(
        range(len(degrees)), rule=lambda m, d: pyo.quicksum(counts[d] * m.v[i] for i, (_, counts) in enumerate(ways))
    )


def fill_spare_gpus(p: PlanInput, plan: Capacity) -> Capacity:
    """Fill every node, keeping enough instances of each TP degree, and maximise the lowest ratio of instances to busy
    instances: Stage 1 stops at any sufficient number, as neither of its objectives rises with more.

    Returns: the plan itself if no such filling is found in time.
    """
    busy = [plan.busy_per_tp[degree] for degree in p.degrees]
    m = pyo.ConcreteModel("spare")
    add_nodes(m, p.nodes, p.degrees)
    m.headroom = pyo.Var(domain=pyo.NonNegativeReals, doc="lowest ratio of instances to busy instances")
    m.enough = pyo.Constraint(p.D, rule=lambda m, d: m.held[d] >= ceil(busy[d] - MIN_BUSY))
    m.lowest = pyo.Constraint(
        [d for d in p.D if busy[d] > MIN_BUSY], rule=lambda m, d: m.headroom * busy[d] <= m.held[d]
    )
    m.objective = pyo.Objective(expr=m.headroom, sense=pyo.maximize)
    if not solve(m, TIME_LIMIT_S).found:
        return plan
    held = {degree: round(pyo.value(m.held[d])) for d, degree in enumerate(p.degrees)}
    instances = {degree: count for degree, count in held.items() if count}
    return msgspec.structs.replace(plan, instances_per_tp=instances, sustains=times_sustained(p, instances))
