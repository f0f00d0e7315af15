"""Stage 2, minimal-overhead reconfiguration: assigns GPUs to the instances of Stage 1 so that as many running instances
as possible are preserved."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pyomo.environ as pyo

from services.reconfigurator.planning.launch_order import next_launch
from services.reconfigurator.planning.plan import Placement, PlannedInstance, PlanStep, check_placements
from services.reconfigurator.planning.solver import SolverStatus, solve
from shared.errors import BadInput, RetryLater

HALF = 0.5  # a binary variable above it is 1


@dataclass(frozen=True, slots=True)
class GpuAssignment:
    instances: list[PlannedInstance]
    preserved: int
    gap: float | None  # of `preserved` to the solver's upper bound, relative; None: unknown
    steps: list[PlanStep]


def plan_transition(
    current: Sequence[Placement], required: Mapping[int, int], nodes: Sequence[int], time_limit_s: float
) -> GpuAssignment:
    """Solve Stage 2 and order its launches. `required` is the number of instances by TP degree, `nodes` the
    number of GPUs of each node.

    Raises: BadInput if `current` or `required` do not fit the nodes; RetryLater if the time is too short.
    """
    check_placements(current, nodes)
    required = {d: count for d, count in required.items() if count}
    m = build_stage2(current, required, nodes)
    result = solve(m, time_limit_s)
    if result.status is SolverStatus.INFEASIBLE:
        raise BadInput(f"instances by TP degree {required} do not fit on nodes of {list(nodes)} GPUs")
    if not result.found:
        raise RetryLater(f"no placement was found within {time_limit_s:g} s")
    instances, preserved = read_stage2(m, current, nodes)
    return GpuAssignment(
        instances=instances,
        preserved=len(preserved),
        gap=result.gap,
        steps=order_steps(current, preserved, [i for i in instances if not i.preserved]),
    )


def build_stage2(current: Sequence[Placement], required: Mapping[int, int], nodes: Sequence[int]) -> pyo.ConcreteModel:
    """Source: "Details for Stage 2 Reconfiguration".

    Departure: the paper's slots of a node and TP degree are interchangeable, and so are the GPUs of new instances. So
    instead of the slots that are used, u_{n,d} counts the instances of TP degree d on node n, and m_i is whether the
    running instance i is one of them. Running instances share no GPU, so it is enough that all instances of a node fit.
    """
    m = pyo.ConcreteModel("stage2")
    m.u = pyo.Var(range(len(nodes)), list(required), domain=pyo.NonNegativeIntegers, doc="TP-d instances of a node")
    m.m = pyo.Var(
        [i for i, placement in enumerate(current) if placement.tp in required],
        domain=pyo.Binary,
        doc="whether an old instance is preserved",
    )
    m.comply = pyo.Constraint(
        list(required),
        doc="Stage 1 compliance",
        rule=lambda m, d: pyo.quicksum(m.u[n, d] for n in range(len(nodes))) == required[d],
    )
    m.fit = pyo.Constraint(
        range(len(nodes)) if required else [],
        doc="slot GPU assignment and GPU exclusivity",
        rule=lambda m, n: pyo.quicksum(d * m.u[n, d] for d in required) <= nodes[n],
    )
    m.active_slots = pyo.Constraint(
        sorted({(current[i].node, current[i].tp) for i in m.m}),
        doc="preservation implies slot activation",
        rule=lambda m, n, d: (
            pyo.quicksum(m.m[i] for i in m.m if (current[i].node, current[i].tp) == (n, d)) <= m.u[n, d]
        ),
    )
    m.preserved = pyo.Objective(sense=pyo.maximize, expr=pyo.quicksum(m.m[i] for i in m.m))
    return m


def read_stage2(
    m: pyo.ConcreteModel, current: Sequence[Placement], nodes: Sequence[int]
) -> tuple[list[PlannedInstance], set[int]]:
    """Read the instances and the indices of the preserved ones.

    Preserved instances keep their GPUs. New ones get the node's other GPUs in order, the largest instance first, so
    that an instance's GPUs are neighbours if possible.
    """
    preserved = {i for i in m.m if m.m[i].value > HALF}
    instances = [
        PlannedInstance(node=c.node, gpus=c.gpus, tp=c.tp, preserved=True)
        for i, c in enumerate(current)
        if i in preserved
    ]
    free = {n: set(range(gpus)) for n, gpus in enumerate(nodes)}
    to_start = {(n, d): round(m.u[n, d].value) for n, d in m.u}
    for kept in instances:
        free[kept.node].difference_update(kept.gpus)
        to_start[kept.node, kept.tp] -= 1
    for (n, d), count in sorted(to_start.items(), key=lambda item: (item[0][0], -item[0][1])):
        for _ in range(count):
            gpus = sorted(free[n])[:d]
            free[n].difference_update(gpus)
            instances.append(PlannedInstance(node=n, gpus=gpus, tp=d, preserved=False))
    return instances, preserved


def order_steps(
    current: Sequence[Placement], preserved: AbstractSet[int], starts: Sequence[Placement]
) -> list[PlanStep]:
    """The steps to the plan, in the order of `next_launch`.

    `preserved` are indices into `current`. Before each launch only the instances stop whose GPUs it needs; those whose
    GPUs no launch needs stop at the end.
    """
    surplus = [c for i, c in enumerate(current) if i not in preserved]
    missing = list(starts)
    steps = []
    while missing:
        start, stops = next_launch(missing, surplus)
        missing.remove(start)
        surplus = [c for c in surplus if c not in stops]
        stopped = [current.index(c) for c in stops]
        steps.append(PlanStep(stop=stopped, start=Placement(node=start.node, gpus=start.gpus, tp=start.tp)))
    return [*steps, PlanStep(stop=[current.index(c) for c in surplus])] if surplus else steps
