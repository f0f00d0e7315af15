"""What is believed of a solver's answer: the real solvers, with and without enough time."""

import random

import pyomo.environ as pyo
import pytest

from services.reconfigurator.planning.plan import Solver
from services.reconfigurator.planning.solver import SolverResult, SolverStatus, solve

both_solvers = pytest.mark.parametrize("solver", list(Solver))


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


@both_solvers
def test_an_optimum_is_called_one(solver: Solver) -> None:
    assert solve(knapsack(10, 2), solver, 60) == SolverResult(SolverStatus.OPTIMAL, gap=0.0)


@both_solvers
def test_a_proof_of_infeasibility_is_believed(solver: Solver) -> None:
    assert solve(market_split(6, 3), solver, 60) == SolverResult(SolverStatus.INFEASIBLE)


@both_solvers
def test_the_best_found_in_time_is_not_called_an_optimum_and_has_its_gap(solver: Solver) -> None:
    m = knapsack(100, 30)
    answer = solve(m, solver, 1.0)
    assert answer.status is SolverStatus.FEASIBLE
    assert answer.gap is not None
    assert 0 < answer.gap < 1
    assert pyo.value(m.worth) > 0


@both_solvers
def test_nothing_found_in_time_is_not_called_infeasible_and_leaves_the_values(solver: Solver) -> None:
    m = market_split(60, 6)
    assert solve(m, solver, 0.5) == SolverResult(SolverStatus.UNKNOWN)
    assert m.x[0].value is None


@both_solvers
def test_no_time_at_all_finds_nothing_or_something_that_holds(solver: Solver) -> None:
    m = knapsack(100, 30)
    answer = solve(m, solver, 0.0)
    assert answer.status in (SolverStatus.UNKNOWN, SolverStatus.FEASIBLE)
    assert all((m.x[i].value is None) == (answer.status is SolverStatus.UNKNOWN) for i in m.x)


@both_solvers
def test_an_objective_without_variables_is_solved(solver: Solver) -> None:
    m = pyo.ConcreteModel()
    m.x = pyo.Var(range(3), domain=pyo.Binary)
    m.two = pyo.Constraint(expr=pyo.quicksum(m.x[i] for i in m.x) == 2)
    m.nothing = pyo.Objective(expr=pyo.quicksum([]), sense=pyo.maximize)
    assert solve(m, solver, 60).status is SolverStatus.OPTIMAL
    assert sum(round(m.x[i].value) for i in m.x) == 2
