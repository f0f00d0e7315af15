"""How instances fit on nodes, counted by kind of node: nodes with equally many GPUs are interchangeable.

A *filling* of a node is a count of instances of each TP degree that fit on it and leave no room for another. A model of
the cluster counts the nodes with each filling, so it grows with the kinds of node and not with the nodes.
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
    """Add the nodes' capacity to the model: the expressions `held` [D], instances by TP degree.

    Source: "Node GPU Capacity". Units: `nodes` are the GPUs of each.
    """
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
