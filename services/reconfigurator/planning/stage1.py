"""Stage 1, quality-aware capacity planning: how many instances at which TP degree.

The products of a binary and another variable are linearised exactly: w stands for z s, and the bounds that tie it to z
follow from the data. "System Stability" needs no product with x: both sides divided by the throughput, it says that the
instances kept busy are at most the instances there are, as the paper itself writes it with a cache.
"""

from collections.abc import Mapping, Sequence
from time import monotonic

import numpy as np
import pyomo.environ as pyo

from services.reconfigurator.planning.packing import add_nodes
from services.reconfigurator.planning.plan import Capacity, PlannedClass, PlanStatus, Solver
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.solver import SolverResult, SolverStatus, solve
from services.reconfigurator.planning.throughput import min_busy_instances, times_sustained
from shared.messages.steps import StepKind

QUALITY_SCALE = 1e4  # of the primary objective in the model: large beside the solvers' absolute tolerances
TIE = 1e-7  # relative: by how much less a primary objective still ties
LEAST_STEPS = 1e-3  # of a request; fewer are crumbs of the arithmetic


def find_capacity(
    p: PlanInput,
    *,
    solver: Solver,
    time_limit_s: float,
    instances: Mapping[int, int] | None = None,
    growing: bool = False,
) -> Capacity | SolverStatus:
    """Solve Stage 1. Given `instances` by TP degree, evaluate these instead of choosing.

    Departure: where the workload is `growing`, room for more of it is the secondary objective, and slack the third.
    Returns: INFEASIBLE or UNKNOWN where there is no plan.
    """
    m = build_stage1(p, instances)
    order = [m.quality, m.room, m.slack] if growing else [m.quality, m.slack]
    answers = solve_stage1(m, order, solver, time_limit_s)
    return read_stage1(m, p, answers) if answers[0].found else answers[0].status


def build_stage1(p: PlanInput, instances: Mapping[int, int] | None = None) -> pyo.ConcreteModel:
    """Stage 1 as a model; its objectives are `quality`, `slack` and `room`, none of them active.

    Source: "Quality-Aware Capacity Planning" and "Supporting Approximate KV Caching", symbols as there; s and z of the
    kind CACHE are the paper's s' and z'. Departure: x_d stands for the sum over n of x_{n,d}.
    """
    m = pyo.ConcreteModel("stage1")
    m.s = pyo.Var(p.J, p.K, p.C, domain=pyo.NonNegativeReals, doc="steps of class k using threshold c")
    m.w = pyo.Var(p.J, p.K, p.D, p.B, domain=pyo.NonNegativeReals, doc="z s: steps of class k on TP-d at batch size b")
    m.z = pyo.Var(p.J, p.D, p.B, domain=pyo.Binary, doc="whether TP-d uses batch size b")
    m.x = pyo.Var(p.D, domain=pyo.NonNegativeIntegers, doc="TP-d instances")
    most = _add_instances(m, p, instances)
    _add_steps(m, p)
    _add_batch_sizes(m, p, most)
    _add_latency(m, p)
    _add_stability(m, p, most)
    _add_objectives(m, p)
    return m


def _add_instances(m: pyo.ConcreteModel, p: PlanInput, instances: Mapping[int, int] | None) -> list[int]:
    """Bound or fix x. Returns: the most it can be, [D]."""
    if instances is not None:
        for d in p.D:
            m.x[d].fix(instances.get(p.degrees[d], 0))
        return [m.x[d].value for d in p.D]
    add_nodes(m, p.nodes, p.degrees)
    m.gpus = pyo.Constraint(p.D, doc="node GPU capacity", rule=lambda m, d: m.x[d] <= m.held[d])
    return [sum(gpus // degree for gpus in p.nodes) for degree in p.degrees]


def _add_steps(m: pyo.ConcreteModel, p: PlanInput) -> None:
    m.unmask = pyo.Constraint(
        p.K,
        doc="token-unmasking completeness",
        rule=lambda m, k: pyo.quicksum(p.T[c] * m.s[j, k, c] for j in p.J for c in p.C) == p.O[k],
    )
    m.allocate = pyo.Constraint(
        p.J,
        p.K,
        doc="step allocation consistency",
        rule=lambda m, j, k: (
            pyo.quicksum(m.s[j, k, c] for c in p.C) == pyo.quicksum(m.w[j, k, d, b] for d in p.D for b in p.B)
        ),
    )
    if p.cached:
        m.blocks = pyo.Constraint(
            p.K,
            doc="one recompute step a block",
            rule=lambda m, k: pyo.quicksum(m.s[StepKind.RECOMPUTE, k, c] for c in p.C) == p.O[k] / p.block_length,
        )


def _add_batch_sizes(m: pyo.ConcreteModel, p: PlanInput, most: list[int]) -> None:
    m.batch = pyo.Constraint(
        p.J,
        p.D,
        doc="batch size selection",
        rule=lambda m, j, d: pyo.quicksum(m.z[j, d, b] for b in p.B) == 1,
    )
    m.link = pyo.Constraint(
        p.J,
        p.K,
        p.D,
        p.B,
        doc="steps only at the batch size selected",
        rule=lambda m, j, k, d, b: m.w[j, k, d, b] <= _most_steps(p, j, k, d, b, most[d]) * m.z[j, d, b],
    )


def _most_steps(p: PlanInput, j: StepKind, k: int, d: int, b: int, instances: int) -> float:
    """The most steps of kind j that class k can run on TP-d at batch size b.

    The least of: those that its output takes at the fewest tokens per step; those that its SLO leaves time for; those
    that so many instances sustain.
    """
    blocks = p.O[k] / p.block_length if p.cached else 0.0
    steps = blocks if p.cached and j is StepKind.RECOMPUTE else p.O[k] / p.T.min() - blocks
    in_time = p.SLO[k] / p.steps[j].L[d, b]
    load = p.RPS[k] * p.busy_s(j, k, d, b)
    return float(min(steps, in_time, instances / load if load > 0 else np.inf))


def _add_latency(m: pyo.ConcreteModel, p: PlanInput) -> None:
    m.t = pyo.Expression(
        p.K,
        doc="latency of class k in seconds",
        rule=lambda m, k: pyo.quicksum(p.steps[j].L[d, b] * m.w[j, k, d, b] for j in p.J for d in p.D for b in p.B),
    )
    m.slo = pyo.Constraint(p.K, doc="SLO satisfaction", rule=lambda m, k: m.t[k] <= p.SLO[k])


def _add_stability(m: pyo.ConcreteModel, p: PlanInput, most: list[int]) -> None:
    m.busy = pyo.Expression(
        p.J,
        p.D,
        p.B,
        doc="TP-d instances kept busy by steps at batch size b",
        rule=lambda m, j, d, b: pyo.quicksum(p.RPS[k] * p.busy_s(j, k, d, b) * m.w[j, k, d, b] for k in p.K),
    )
    m.stability = pyo.Constraint(
        p.D,
        doc="system stability",
        rule=lambda m, d: pyo.quicksum(m.busy[j, d, b] for j in p.J for b in p.B) <= m.x[d],
    )
    m.busy_at = pyo.Constraint(
        p.J,
        p.D,
        p.B,
        doc="what stability and the selection imply; tightens the relaxation",
        rule=lambda m, j, d, b: m.busy[j, d, b] <= most[d] * m.z[j, d, b],
    )


def _add_objectives(m: pyo.ConcreteModel, p: PlanInput) -> None:
    scale = QUALITY_SCALE / p.RPS.sum()
    m.quality = pyo.Objective(
        doc="average confidence threshold per output token, scaled",
        sense=pyo.maximize,
        expr=pyo.quicksum(
            scale * p.RPS[k] * p.thresholds[c] * p.T[c] / p.O[k] * m.s[j, k, c] for j in p.J for k in p.K for c in p.C
        ),
    )
    m.slack = pyo.Objective(
        doc="SLO slack", sense=pyo.maximize, expr=pyo.quicksum(p.RPS[k] * (p.SLO[k] - m.t[k]) for k in p.K)
    )
    m.room = pyo.Objective(
        doc="how many times the workload could be sustained",
        sense=pyo.maximize,
        expr=pyo.quicksum(m.x[d] / min_busy_instances(p, d) for d in p.D),
    )
    for objective in (m.quality, m.slack, m.room):
        objective.deactivate()


def solve_stage1(
    m: pyo.ConcreteModel, order: Sequence[pyo.Objective], solver: Solver, time_limit_s: float
) -> list[SolverResult]:
    """Maximise one objective after the other, each among the solutions that tie in those before, and in half of the
    time that is left, the last in all of it. Returns: an answer to each; only the first if that has none."""
    end_s = monotonic() + time_limit_s
    m.ties = pyo.ConstraintList(doc="what the objectives before have reached")
    answers: list[SolverResult] = []
    for objective in order:
        objective.activate()
        left_s = end_s - monotonic()
        answers.append(solve(m, solver, left_s if objective is order[-1] else left_s / 2))
        objective.deactivate()
        if not answers[0].found:
            break
        m.ties.add(objective.expr >= pyo.value(objective) * (1 - TIE))
    return answers


def read_stage1(m: pyo.ConcreteModel, p: PlanInput, answers: Sequence[SolverResult]) -> Capacity:
    """The solution in the model; the first answer is to `quality`, the last to `slack`."""
    optimal = all(answer.status is SolverStatus.OPTIMAL for answer in answers)
    counts = (round(m.x[d].value) for d in p.D)
    instances = {degree: count for degree, count in zip(p.degrees, counts, strict=True) if count}
    return Capacity(
        status=PlanStatus.OPTIMAL if optimal else PlanStatus.FEASIBLE,
        mean_threshold=pyo.value(m.quality) / QUALITY_SCALE,
        mean_threshold_gap=answers[0].gap,
        slack_s=pyo.value(m.slack),
        slack_gap=answers[-1].gap,
        instances_per_tp=instances,
        busy_per_tp={p.degrees[d]: sum(pyo.value(m.busy[j, d, b]) for j in p.J for b in p.B) for d in p.D},
        sustains=times_sustained(p, instances),
        classes=[_read_class(m, p, k) for k in p.K],
    )


def _read_class(m: pyo.ConcreteModel, p: PlanInput, k: int) -> PlannedClass:
    by_threshold = {c: sum(m.s[j, k, c].value for j in p.J) for c in p.C}
    by_degree = {d: sum(m.w[j, k, d, b].value for j in p.J for b in p.B) for d in p.D}
    return PlannedClass(
        name=p.names[k],
        latency_s=pyo.value(m.t[k]),
        steps_by_threshold={
            str(float(p.thresholds[c])): steps for c, steps in by_threshold.items() if steps > LEAST_STEPS
        },
        steps_by_tp={str(p.degrees[d]): steps for d, steps in by_degree.items() if steps > LEAST_STEPS},
    )
