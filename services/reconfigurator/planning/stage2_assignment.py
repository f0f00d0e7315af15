"""Stage 2, minimal-overhead reconfiguration: assigns GPUs to the instances of Stage 1 so that as many running instances
as possible are preserved.

A place, called slot in the DiLaServe paper, is (node, TP degree d, index): the index-th possible TP-d instance of the
node. It fixes no GPUs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import pyomo.environ as pyo

from services.reconfigurator.planning.launch_order import next_launch
from services.reconfigurator.planning.plan import Placement, PlannedInstance, PlanStep, check_placements
from services.reconfigurator.planning.solver import SolverStatus, solve
from shared.errors import BadInput, RetryLater

HALF = 0.5  # a binary variable above it is 1

Place = tuple[int, int, int]  # node, TP degree, index


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
    if any(count > sum(gpus // d for gpus in nodes) for d, count in required.items()):
        raise _unfit(required, nodes)
    m = build_stage2(current, required, nodes)
    result = solve(m, time_limit_s)
    if result.status is SolverStatus.INFEASIBLE:
        raise _unfit(required, nodes)
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
    """Source: "Details for Stage 2 Reconfiguration", with the paper's symbols.

    Departures: a GPU is in at most one place, not exactly one, because Stage 1 may leave GPUs unused. The places of a
    node and TP degree are interchangeable, so each running instance i has one of its own, l_i. Then m_{i,l} becomes
    m_i, and the constraint "Preservation Uniqueness" always holds.
    """
    places = [(n, d, ell) for n, gpus in enumerate(nodes) for d in required for ell in range(gpus // d)]
    pairs = [(*place, g) for place in places for g in range(nodes[place[0]])]
    own = _own_places(current, required)
    m = pyo.ConcreteModel("stage2")
    m.u = pyo.Var(places, domain=pyo.Binary, doc="whether a place is used")
    m.a = pyo.Var(pairs, domain=pyo.Binary, doc="whether GPU g is assigned to a place")
    m.m = pyo.Var(list(own), domain=pyo.Binary, doc="whether an old instance is preserved")
    m.comply = pyo.Constraint(
        list(required),
        doc="Stage 1 compliance",
        rule=lambda m, d: pyo.quicksum(m.u[place] for place in places if place[1] == d) == required[d],
    )
    m.assign = pyo.Constraint(
        places,
        doc="slot GPU assignment",
        rule=lambda m, n, d, ell: pyo.quicksum(m.a[n, d, ell, g] for g in range(nodes[n])) == d * m.u[n, d, ell],
    )
    m.exclude = pyo.Constraint(
        sorted({(n, g) for n, _, _, g in pairs}),
        doc="GPU exclusivity",
        rule=lambda m, n, g: pyo.quicksum(m.a[n, d, ell, g] for d in required for ell in range(nodes[n] // d)) <= 1,
    )
    m.active_place = pyo.Constraint(
        list(own), doc="preservation implies slot activation", rule=lambda m, i: m.m[i] <= m.u[own[i]]
    )
    m.same = pyo.Constraint(
        [(i, g) for i in own for g in current[i].gpus],
        doc="preservation implies same GPU set",
        rule=lambda m, i, g: m.m[i] <= m.a[(*own[i], g)],
    )
    m.preserved = pyo.Objective(sense=pyo.maximize, expr=pyo.quicksum(m.m[i] for i in own))
    return m


def read_stage2(
    m: pyo.ConcreteModel, current: Sequence[Placement], nodes: Sequence[int]
) -> tuple[list[PlannedInstance], set[int]]:
    """Read the instances and the indices of the preserved ones.

    Preserved instances keep their GPUs. The solver's GPUs of new instances are ignored: these get the node's other GPUs
    in order, the largest instance first, so that an instance's GPUs are neighbours if possible.
    """
    preserved = {i for i in m.m if m.m[i].value > HALF}
    instances = [
        PlannedInstance(node=c.node, gpus=c.gpus, tp=c.tp, preserved=True)
        for i, c in enumerate(current)
        if i in preserved
    ]
    free = {n: set(range(gpus)) for n, gpus in enumerate(nodes)}
    to_start = Counter((n, d) for n, d, ell in m.u if m.u[n, d, ell].value > HALF)
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


def _own_places(current: Sequence[Placement], required: Mapping[int, int]) -> dict[int, Place]:
    """The place of each old instance, by its index; those of a TP degree that is not required have none."""
    used: Counter[tuple[int, int]] = Counter()
    own = {}
    for i, placement in enumerate(current):
        if placement.tp in required:
            own[i] = (placement.node, placement.tp, used[placement.node, placement.tp])
            used[placement.node, placement.tp] += 1
    return own


def _unfit(required: Mapping[int, int], nodes: Sequence[int]) -> BadInput:
    return BadInput(f"instances by TP degree {dict(required)} do not fit on nodes of {list(nodes)} GPUs")
