"""How instances fit on nodes, counted by kind of node: nodes with as many GPUs are alike.

A *filling* of a node tells how many instances of each TP degree stand on it, such that no other one fits. A cluster can
hold what some choice of one filling a node holds, so a model of it grows with the kinds of node, not with the nodes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import pyomo.environ as pyo


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
    """Add to the model what the nodes hold: the expressions `held` [D], instances by TP degree.

    Source: "Node GPU Capacity". Units: `nodes` are the GPUs of each.
    """
    alike = Counter(nodes)
    ways = [(gpus, counts) for gpus in alike for counts in fillings(gpus, degrees)]
    index = range(len(ways))
    m.v = pyo.Var(index, domain=pyo.NonNegativeIntegers, doc="nodes with this filling")
    m.filled = pyo.Constraint(
        list(alike),
        doc="one filling a node",
        rule=lambda m, gpus: pyo.quicksum(m.v[i] for i in index if ways[i][0] == gpus) == alike[gpus],
    )
    m.held = pyo.Expression(
        range(len(degrees)), rule=lambda m, d: pyo.quicksum(counts[d] * m.v[i] for i, (_, counts) in enumerate(ways))
    )
