"""Fills the GPUs that Stage 1 leaves unused.

Neither of its objectives rises with more instances than the workload needs, so it stops at any sufficient number. The
unused GPUs go to the TP degrees with the least headroom.
"""

from math import ceil

import msgspec
import pyomo.environ as pyo

from services.reconfigurator.planning.packing import add_nodes
from services.reconfigurator.planning.plan import Capacity
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.solver import solve
from services.reconfigurator.planning.throughput import times_sustained

MIN_BUSY = 1e-6  # instances; a degree kept busy by fewer serves nothing
TIME_LIMIT_S = 5.0


def fill_spare_gpus(p: PlanInput, plan: Capacity) -> Capacity:
    """Fill every node, keeping enough instances of each TP degree, and maximise the lowest ratio of instances to busy
    instances. Returns: the plan itself if no such filling is found in time."""
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
