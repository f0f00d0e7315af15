"""Both stages of the planner against enumeration, and the real solver that they use."""

import random
import time
from collections import Counter
from collections.abc import Sequence

import pyomo.environ as pyo
import pytest

from services.reconfigurator.planning import stage1_capacity
from services.reconfigurator.planning.plan import Capacity, Placement, PlanStatus, check_placements
from services.reconfigurator.planning.solver import SolverResult, SolverStatus, _is_satisfied, solve
from services.reconfigurator.planning.stage1_capacity import build_stage1, find_capacity, read_stage1, solve_stage1
from services.reconfigurator.planning.stage2_assignment import GpuAssignment, plan_transition
from shared.errors import BadInput
from tests.support.small_plans import enumerate_stage1, enumerate_stage2, small_input, small_transition


def seeds(few: range) -> pytest.MarkDecorator:
    """The seeds of each test, and many more of a slow one."""
    slow = pytest.param(range(1000, 1050), marks=[pytest.mark.slow, pytest.mark.timeout(600)])
    return pytest.mark.parametrize("seeds", [few, slow], ids=str)


@seeds(range(8))
def test_stage_1_matches_enumeration(seeds: range) -> None:
    """With and without a cache in turn."""
    found = [stage_1_agrees(seed, cached=bool(seed % 2)) for seed in seeds]
    assert 1 <= found.count(SolverStatus.INFEASIBLE) <= len(seeds) / 2, "instances of both kinds are among them"


@pytest.mark.parametrize("seed", range(0, 48, 16))
def test_a_growing_workload_has_the_same_quality_and_at_least_the_room(seed: int) -> None:
    p = small_input(seed, cached=bool(seed % 32))
    steady, growing = (find_capacity(p, 60, growing=growing) for growing in (False, True))
    if isinstance(steady, SolverStatus) or isinstance(growing, SolverStatus):
        assert steady is growing is SolverStatus.INFEASIBLE
        return
    assert growing.mean_threshold == pytest.approx(steady.mean_threshold, rel=1e-5)
    assert growing.sustains >= steady.sustains * (1 - 1e-5)
    assert growing.slack_s <= steady.slack_s + 1e-5


def test_each_objective_has_half_of_the_time_left_and_the_last_one_all(monkeypatch: pytest.MonkeyPatch) -> None:
    limits_s: list[float] = []

    def recorded(m: pyo.ConcreteModel, limit_s: float) -> SolverResult:
        limits_s.append(limit_s)
        return solve(m, limit_s)

    monkeypatch.setattr(stage1_capacity, "solve", recorded)
    began_s = time.monotonic()
    find_capacity(small_input(0, cached=False), 1000.0, growing=True)
    took_s = time.monotonic() - began_s
    assert limits_s == pytest.approx([500.0, 500.0, 1000.0], abs=took_s)


def test_a_plan_is_optimal_only_if_each_objective_is() -> None:
    p = small_input(0, cached=False)
    m = build_stage1(p)
    results = solve_stage1(m, [m.quality, m.slack], 60.0)
    assert read_stage1(m, p, results).status is PlanStatus.OPTIMAL
    cut = SolverResult(SolverStatus.FEASIBLE, gap=0.25)
    for mixed in ([results[0], cut], [cut, results[1]]):
        plan = read_stage1(m, p, mixed)
        assert plan.status is PlanStatus.FEASIBLE
        assert (plan.mean_threshold_gap, plan.slack_gap) == (mixed[0].gap, mixed[1].gap)


@pytest.mark.parametrize("faster", [1, 100])  # less than a step per request, for a model that is 100 times faster
@pytest.mark.parametrize("seed", range(0, 40, 16))
def test_the_planned_steps_write_the_whole_output(seed: int, faster: int) -> None:
    p = small_input(seed, cached=False)
    p.T = faster * p.T
    plan = find_capacity(p, 60)
    if isinstance(plan, Capacity):
        tokens = dict(zip(map(str, map(float, p.thresholds)), p.T, strict=True))
        for k, planned in enumerate(plan.classes):
            written = sum(steps * tokens[c] for c, steps in planned.steps_by_threshold.items())
            assert written == pytest.approx(p.O[k], rel=1e-2)


@seeds(range(15))
def test_stage_2_matches_enumeration(seeds: range) -> None:
    found = [stage_2_agrees(seed) for seed in seeds]
    assert 1 <= found.count(None) <= len(seeds) / 2, "instances of both kinds are among them"


def stage_1_agrees(seed: int, *, cached: bool) -> Capacity | SolverStatus:
    p = small_input(seed, cached=cached)
    found, expected = find_capacity(p, 60), enumerate_stage1(p)
    if expected is None:
        assert found is SolverStatus.INFEASIBLE, f"seed {seed}"
        return found
    assert isinstance(found, Capacity), f"seed {seed}: {found}, expected {expected}"
    assert found.status is PlanStatus.OPTIMAL, f"seed {seed}"
    assert (found.mean_threshold, found.slack_s) == pytest.approx(expected, rel=1e-5, abs=1e-5), f"seed {seed}"
    return found


def stage_2_agrees(seed: int) -> GpuAssignment | None:
    current, required, nodes = small_transition(seed)
    expected = enumerate_stage2(current, required, nodes)
    if expected is None:
        with pytest.raises(BadInput, match="do not fit"):
            plan_transition(current, required, nodes, 60)
        return None
    transition = plan_transition(current, required, nodes, 60)
    assert (transition.preserved, transition.gap) == (expected, 0), f"seed {seed}"
    assert Counter(i.tp for i in transition.instances) == Counter(required), f"seed {seed}"
    check_placements(transition.instances, nodes)
    kept = [place(i) for i in transition.instances if i.preserved]
    assert len(kept) == expected, f"seed {seed}"
    assert {*kept} <= {place(c) for c in current}, f"seed {seed}: preserved instances keep their very GPUs"
    walk(current, transition)
    return transition


def walk(current: Sequence[Placement], transition: GpuAssignment) -> None:
    """Take the steps: each launch finds its GPUs free, each stop before it frees one of them, the end is the plan."""
    running = dict(enumerate(place(c) for c in current))
    started: list[tuple[int, frozenset[int]]] = []
    for step in transition.steps:
        stopped = [running.pop(i) for i in step.stop]
        if step.start is not None:
            node, gpus = place(step.start)
            assert all(n == node and g & gpus for n, g in stopped), "a stop is not needed yet"
            assert not any(n == node and g & gpus for n, g in [*running.values(), *started]), "a GPU is not free"
            started.append((node, gpus))
    assert {*running.values(), *started} == {place(i) for i in transition.instances}


def place(placement: Placement) -> tuple[int, frozenset[int]]:
    return placement.node, frozenset(placement.gpus)


def knapsack(items: int, rows: int) -> pyo.ConcreteModel:
    """Any subset of few items is a solution; the best one takes long to prove for many."""
    r = random.Random(1)
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(items), domain=pyo.Binary)
    m.fit = pyo.Constraint(
        range(rows), rule=lambda m, _: pyo.quicksum(r.randint(1, 1000) * m.x[i] for i in m.x) <= 250 * items
    )
    m.worth = pyo.Objective(expr=pyo.quicksum(r.randint(500, 1000) * m.x[i] for i in m.x), sense=pyo.maximize)
    return m


def market_split(products: int, rows: int) -> pyo.ConcreteModel:
    """Feasible if relaxed, almost surely infeasible in binaries, which takes long to prove for many products."""
    r = random.Random(1)
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(products), domain=pyo.Binary)
    demand = [[r.randint(0, 99) for _ in range(products)] for _ in range(rows)]
    m.split = pyo.Constraint(
        range(rows), rule=lambda m, k: pyo.quicksum(demand[k][i] * m.x[i] for i in m.x) == sum(demand[k]) // 2
    )
    m.any = pyo.Objective(expr=m.x[0], sense=pyo.maximize)
    return m


def test_an_optimum_is_reported_as_optimal() -> None:
    assert solve(knapsack(10, 2), 60) == SolverResult(SolverStatus.OPTIMAL, gap=0.0)


def test_a_proof_of_infeasibility_is_reported() -> None:
    assert solve(market_split(6, 3), 60) == SolverResult(SolverStatus.INFEASIBLE)


def test_the_best_solution_in_time_is_feasible_with_its_gap() -> None:
    m = knapsack(100, 30)
    result = solve(m, 1.0)
    assert result.status is SolverStatus.FEASIBLE
    assert result.gap is not None
    assert 0 < result.gap < 1
    assert pyo.value(m.worth) > 0


def test_without_a_solution_in_time_the_status_is_unknown_and_values_stay() -> None:
    m = market_split(60, 6)
    assert solve(m, 0.5) == SolverResult(SolverStatus.UNKNOWN)
    assert m.x[0].value is None


def test_a_time_limit_of_0_gives_no_solution_or_a_valid_one() -> None:
    m = knapsack(100, 30)
    result = solve(m, 0.0)
    assert result.status in (SolverStatus.UNKNOWN, SolverStatus.FEASIBLE)
    assert all((m.x[i].value is None) == (result.status is SolverStatus.UNKNOWN) for i in m.x)


def test_an_objective_without_variables_is_solved() -> None:
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(3), domain=pyo.Binary)
    m.two = pyo.Constraint(expr=pyo.quicksum(m.x[i] for i in m.x) == 2)
    m.nothing = pyo.Objective(expr=pyo.quicksum([]), sense=pyo.maximize)
    assert solve(m, 60).status is SolverStatus.OPTIMAL
    assert sum(round(m.x[i].value) for i in m.x) == 2


@pytest.mark.parametrize(("value", "fits"), [(1.0, True), (0.5, False), (2.0, False)])
def test_a_solution_counts_only_with_whole_numbers_within_the_constraints(value: float, *, fits: bool) -> None:
    """CBC gives the solution of a relaxation if it must stop."""
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.Integers)
    m.most = pyo.Constraint(expr=m.x <= 1)
    m.x.set_value(value, skip_validation=True)
    assert _is_satisfied(m) is fits
