"""Runs a solver on a Pyomo model and checks its answer.

A solver that ran out of time has proven neither optimality nor infeasibility. A solution counts only if it satisfies
the model, integers included: CBC returns the solution of a relaxation if it must stop.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from enum import Enum, auto
from math import isfinite
from pathlib import Path

import cbcbox
import pyomo.environ as pyo
from pyomo.contrib.solver.common.factory import SolverFactory
from pyomo.contrib.solver.common.results import TerminationCondition
from pyomo.repn.plugins.lp_writer import LPWriter

from services.reconfigurator.planning.plan import Solver
from shared.errors import DilaserveError

GAP = 1e-6  # relative; a solution within it counts as optimal
TOLERANCE = 1e-5  # how far a constraint (relative) or an integer may be off in an accepted solution
INCREMENT = 1e-9  # the least improvement of a new solution; CBC's default, 1e-4, is absolute and too coarse
NO_BOUND_PROPAGATION = ("-boundPropLevel", "singletons")  # CBC 2.935's calls feasible models infeasible
MIN_TIME_LIMIT_S = 0.01  # solvers accept no limit of 0
GRACE_S = 10.0  # CBC checks the clock only now and then
# Texts of CBC's solution file, whose first line is its status, and of its log; compared in lower case.
CBC_OPTIMAL = "optimal"
CBC_INFEASIBLE = "infeasible"  # "Infeasible", "Integer infeasible"
CBC_NO_SOLUTION = "no integer solution"  # "Stopped on time (no integer solution - continuous used)"
CBC_STOPPED = "stopped on "  # "Stopped on time"; in the log "LP relaxation stopped on time limit"


class SolverStatus(Enum):
    OPTIMAL = auto()  # within GAP
    FEASIBLE = auto()  # the best found within the time limit
    INFEASIBLE = auto()  # proven
    UNKNOWN = auto()  # nothing found within the time limit


@dataclass(frozen=True, slots=True)
class SolverResult:
    """`gap` is relative, from the objective to the best bound; None if the solver gave no bound."""

    status: SolverStatus
    gap: float | None = None

    @property
    def found(self) -> bool:
        return self.status in (SolverStatus.OPTIMAL, SolverStatus.FEASIBLE)


def solve(model: pyo.ConcreteModel, solver: Solver, time_limit_s: float) -> SolverResult:
    """Maximise the model's active objective on one core.

    Modifies: the values of the model's variables, only if a solution was found.
    Raises: DilaserveError if the solver fails.
    """
    old_values = [(v, v.value) for v in model.component_data_objects(pyo.Var)]
    run = _run_cbc if solver is Solver.CBC else _run_highs
    status, bound = run(model, max(time_limit_s, MIN_TIME_LIMIT_S))
    if status is SolverStatus.INFEASIBLE:
        return SolverResult(status)
    if status is SolverStatus.UNKNOWN or not _is_satisfied(model):
        for variable, value in old_values:
            variable.set_value(value, skip_validation=True)
        return SolverResult(SolverStatus.UNKNOWN)
    if status is SolverStatus.OPTIMAL:
        return SolverResult(status, gap=0.0)
    return SolverResult(status, gap=_gap(model, bound))


def _run_highs(model: pyo.ConcreteModel, time_limit_s: float) -> tuple[SolverStatus, float | None]:
    highs = SolverFactory("highs")
    result = highs.solve(
        model,
        time_limit=time_limit_s,
        rel_gap=GAP,
        threads=1,
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,
    )
    match result.termination_condition:
        case TerminationCondition.provenInfeasible | TerminationCondition.infeasibleOrUnbounded:
            return SolverStatus.INFEASIBLE, None  # none of the planner's models is unbounded
        case TerminationCondition.convergenceCriteriaSatisfied:
            status = SolverStatus.OPTIMAL
        case _ if result.incumbent_objective is None:
            return SolverStatus.UNKNOWN, None
        case _:
            status = SolverStatus.FEASIBLE
    result.solution_loader.load_vars()
    return status, result.objective_bound


def _run_cbc(model: pyo.ConcreteModel, time_limit_s: float) -> tuple[SolverStatus, float | None]:
    with tempfile.TemporaryDirectory(prefix="dilaserve-cbc-") as directory:
        problem, solution = Path(directory, "model.lp"), Path(directory, "solution.txt")
        with problem.open("w", encoding="utf-8") as file:
            symbols = LPWriter().write(model, file).symbol_map.bySymbol
        limits = ["-sec", f"{time_limit_s}", "-timeMode", "elapsed"]
        options = [*limits, "-ratioGap", f"{GAP}", "-increment", f"{INCREMENT}", *NO_BOUND_PROPAGATION]
        cbc = str(Path(cbcbox.cbc_dist_dir(), "bin", "cbc"))
        command = [cbc, *options, "-import", str(problem), "-solve", "-solu", str(solution)]
        try:
            ran = subprocess.run(  # noqa: S603  (the program of the wheel)
                command, capture_output=True, text=True, check=False, timeout=time_limit_s + GRACE_S
            )
        except subprocess.TimeoutExpired:
            return SolverStatus.UNKNOWN, None
        if ran.returncode != 0 or not solution.exists():
            raise DilaserveError(f"CBC failed with status {ran.returncode}: {ran.stderr.strip()[-200:]}")
        header, *rows = solution.read_text(encoding="utf-8").splitlines()
    header = header.lower()
    if CBC_INFEASIBLE in header or CBC_NO_SOLUTION in header:
        stopped = CBC_STOPPED in header or CBC_STOPPED in ran.stdout.lower()
        return (SolverStatus.UNKNOWN if stopped else SolverStatus.INFEASIBLE), None
    values = {name: float(value) for name, value in (row.removeprefix("**").split()[1:3] for row in rows)}
    for name, variable in symbols.items():
        if variable.ctype is pyo.Var:
            variable.set_value(values.get(name, 0.0), skip_validation=True)
    if header.startswith(CBC_OPTIMAL):
        return SolverStatus.OPTIMAL, None
    bounds = re.findall(r"^(?:Upper|Lower) bound:\s+(\S+)", ran.stdout, flags=re.MULTILINE)
    return SolverStatus.FEASIBLE, float(bounds[-1]) if bounds else None


def _is_satisfied(model: pyo.ConcreteModel) -> bool:
    """Whether the variables' values satisfy the model."""
    for variable in model.component_data_objects(pyo.Var):
        value = variable.value
        if variable.is_integer() and value is not None and abs(value - round(value)) > TOLERANCE:
            return False
    for row in model.component_data_objects(pyo.Constraint, active=True):
        value = pyo.value(row.body)
        for limit, sign in ((pyo.value(row.lower), -1), (pyo.value(row.upper), 1)):
            if limit is not None and sign * (value - limit) > TOLERANCE * max(1.0, abs(limit)):
                return False
    return True


def _gap(model: pyo.ConcreteModel, bound: float | None) -> float | None:
    if bound is None or not isfinite(bound):
        return None
    [objective] = model.component_data_objects(pyo.Objective, active=True)
    value: float = pyo.value(objective)
    return max(bound - value, 0.0) / max(abs(value), 1e-9)
