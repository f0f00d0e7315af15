"""Stage 1, quality-aware capacity planning: the number of instances at each TP degree.

Products of a binary and another variable are linearised exactly: w is z s, and the bounds that tie it to z follow from
the data. "System Stability" needs no product with x: divided by the throughput, it limits the busy instances to the
existing instances, as in the paper's form with a cache.
"""

from collections.abc import Mapping, Sequence
from time import monotonic

import numpy as np
import pyomo.environ as pyo

from services.reconfigurator.planning.packing import add_nodes
from services.reconfigurator.planning.plan import Capacity, PlannedClass, PlanStatus
from services.reconfigurator.planning.plan_input import PlanInput
from services.reconfigurator.planning.solver import SolverResult, SolverStatus, solve
from services.reconfigurator.planning.throughput import min_busy_instances, times_sustained
from shared.messages.steps import StepKind

QUALITY_SCALE = 1e4  # factor of the primary objective in the model: makes it large beside absolute tolerances
TIE = 1e-7  # relative; an objective lower by this still ties
MIN_STEPS = 1e-3  # steps per request; smaller values are round-off


def find_capacity(
    p: PlanInput, time_limit_s: float, *, instances: Mapping[int, int] | None = None, growing: bool = False
) -> Capacity | SolverStatus:
    """Solve Stage 1. Given `instances` by TP degree, evaluate these instead.

    Departure: if the workload is `growing`, room for more of it is the secondary objective, and slack the third.
    Returns: INFEASIBLE or UNKNOWN if there is no plan.
    """
    m = build_stage1(p, instances)
    order = [m.quality, m.room, m.slack] if growing else [m.quality, m.slack]
    results = solve_stage1(m, order, time_limit_s)
    return read_stage1(m, p, results) if results[0].found else results[0].status


def build_stage1(p: PlanInput, instances: Mapping[int, int] | None = None) -> pyo.ConcreteModel:
    """Stage 1 as a model; its objectives are `quality`, `slack` and `room`, none of them active.

    Source: "Quality-Aware Capacity Planning" and "Supporting Approximate KV Caching", symbols as there; s and z of the
    kind CACHE are the paper's s' and z'. Departure: x_d is the sum over n of x_{n,d}.
    """
    m = pyo.ConcreteModel("stage1")
    m.s = pyo.Var(p.J, p.K, p.C, domain=pyo.NonNegativeReals, doc="steps of class k using threshold c")
    m.w = pyo.Var(p.J, p.K, p.D, p.B, domain=pyo.NonNegativeReals, doc="z s: steps of class k on TP-d at batch size b")
    m.z = pyo.Var(p.J, p.D, p.B, domain=pyo.Binary, doc="whether TP-d uses batch size b")
    m.x = pyo.Var(p.D, domain=pyo.NonNegativeIntegers, doc="TP-d instances")
    max_instances = _add_instances(m, p, instances)
    _add_steps(m, p)
    _add_batch_sizes(m, p, max_instances)
    _add_latency(m, p)
    _add_stability(m, p, max_instances)
    _add_objectives(m, p)
    return m


def _add_instances(m: pyo.ConcreteModel, p: PlanInput, instances: Mapping[int, int] | None) -> list[int]:
    """Bound or fix x. Returns: its maximum, [D]."""
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
            doc="one recompute step per block, or with an exact cache per request",
            rule=lambda m, k: pyo.quicksum(m.s[StepKind.RECOMPUTE, k, c] for c in p.C) == p.recomputes[k],
        )


def _add_batch_sizes(m: pyo.ConcreteModel, p: PlanInput, max_instances: list[int]) -> None:
    m.batch = pyo.Constraint(
        p.J, p.D, doc="batch size selection", rule=lambda m, j, d: pyo.quicksum(m.z[j, d, b] for b in p.B) == 1
    )
    m.link = pyo.Constraint(
        p.J,
        p.K,
        p.D,
        p.B,
        doc="steps only at the batch size selected",
        rule=lambda m, j, k, d, b: m.w[j, k, d, b] <= _max_steps(p, j, k, d, b, max_instances[d]) * m.z[j, d, b],
    )


def _max_steps(p: PlanInput, j: StepKind, k: int, d: int, b: int, instances: int) -> float:
    """An upper bound on the steps of kind j that class k can run on TP-d at batch size b.

    The minimum of: the steps of its output at the fewest tokens per step; the steps that fit its SLO; the steps that
    the instances sustain.
    """
    recomputes = p.recomputes[k] if p.cached else 0.0
    steps = recomputes if p.cached and j is StepKind.RECOMPUTE else p.O[k] / p.T.min() - recomputes
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


def _add_stability(m: pyo.ConcreteModel, p: PlanInput, max_instances: list[int]) -> None:
    m.busy = pyo.Expression(
        p.J,
        p.D,
        p.B,
        doc="TP-d instances kept busy by steps at batch size b",
        rule=lambda m, j, d, b: pyo.quicksum(p.RPS[k] * p.busy_s(j, k, d, b) * m.w[j, k, d, b] for k in p.K),
    )
    m.stability = pyo.Constraint(
        p.D, doc="system stability", rule=lambda m, d: pyo.quicksum(m.busy[j, d, b] for j in p.J for b in p.B) <= m.x[d]
    )
    m.busy_at = pyo.Constraint(
        p.J,
        p.D,
        p.B,
        doc="implied by stability and batch size selection; tightens the relaxation",
        rule=lambda m, j, d, b: m.busy[j, d, b] <= max_instances[d] * m.z[j, d, b],
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
        doc="room: how many times the workload the instances sustain",
        sense=pyo.maximize,
        expr=pyo.quicksum(m.x[d] / min_busy_instances(p, d) for d in p.D),
    )
    for objective in (m.quality, m.slack, m.room):
        objective.deactivate()


def solve_stage1(m: pyo.ConcreteModel, order: Sequence[pyo.Objective], time_limit_s: float) -> list[SolverResult]:
    """Maximise the objectives in order, each among the solutions that tie in those before it. Each has half of the time
    that is left, the last one all of it. Returns: a result for each; only the first if that found nothing."""
    end_s = monotonic() + time_limit_s
    m.ties = pyo.ConstraintList(doc="values of the objectives solved before")
    results: list[SolverResult] = []
    for objective in order:
        objective.activate()
        left_s = end_s - monotonic()
        results.append(solve(m, left_s if objective is order[-1] else left_s / 2))
        objective.deactivate()
        if not results[0].found:
            break
        m.ties.add(objective.expr >= pyo.value(objective) * (1 - TIE))
    return results


def read_stage1(m: pyo.ConcreteModel, p: PlanInput, results: Sequence[SolverResult]) -> Capacity:
    """Read the model's solution; the first result is that of `quality`, the last that of `slack`."""
    optimal = all(result.status is SolverStatus.OPTIMAL for result in results)
    counts = (round(m.x[d].value) for d in p.D)
    instances = {degree: count for degree, count in zip(p.degrees, counts, strict=True) if count}
    return Capacity(
        status=PlanStatus.OPTIMAL if optimal else PlanStatus.FEASIBLE,
        mean_threshold=pyo.value(m.quality) / QUALITY_SCALE,
        mean_threshold_gap=results[0].gap,
        slack_s=pyo.value(m.slack),
        slack_gap=results[-1].gap,
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
            str(float(p.thresholds[c])): steps for c, steps in by_threshold.items() if steps > MIN_STEPS
        },
        steps_by_tp={str(p.degrees[d]): steps for d, steps in by_degree.items() if steps > MIN_STEPS},
    )
