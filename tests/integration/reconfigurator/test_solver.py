"""The real solver, with and without enough time."""

import random

import pyomo.environ as pyo
import pytest

from services.reconfigurator.planning.solver import SolverResult, SolverStatus, _is_satisfied, solve


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
