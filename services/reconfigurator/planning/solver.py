"""Runs CBC on a Pyomo model, through Pyomo, and checks its answer.

A solver that ran out of time has proven neither optimality nor infeasibility. A solution counts only if it satisfies
the model, integers included: CBC returns the solution of a relaxation if it must stop.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from math import isfinite
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import cbcbox
import pyomo.environ as pyo
from pyomo.common.errors import ApplicationError
from pyomo.opt import SolverStatus as ProcessStatus
from pyomo.opt import TerminationCondition

from shared.errors import DilaserveError

GAP = 1e-6  # relative; a solution within it counts as optimal
TOLERANCE = 1e-5  # how far a constraint (relative) or an integer may be off in an accepted solution
MIN_TIME_LIMIT_S = 0.01  # CBC accepts no limit of 0
GRACE_S = 10.0  # CBC checks the clock only now and then; after this it is killed
OPTIONS = {
    "ratioGap": GAP,
    "increment": 1e-9,  # the least improvement of a new solution; CBC's default, 1e-4, is absolute and too coarse
    "boundPropLevel": "singletons",  # more bound propagation of CBC 2.935 calls feasible models infeasible
    "rowReduction": "off",  # Pyomo reads no solution of a model without rows
}
BOUND = re.compile(r"^(?:Upper|Lower) bound:\s+(\S+)", re.MULTILINE)  # in CBC's log; Pyomo reads only that of a minimum


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


def solve(model: pyo.ConcreteModel, time_limit_s: float) -> SolverResult:
    """Maximise the model's active objective on one core.

    Modifies: the values of the model's variables, only if a solution was found.
    Raises: DilaserveError if the solver fails.
    """
    time_limit_s, start_s = max(time_limit_s, MIN_TIME_LIMIT_S), monotonic()
    try:
        results, bound = _run_cbc(model, time_limit_s)
    except TimeoutExpired:
        return SolverResult(SolverStatus.UNKNOWN)
    if results.solver.termination_condition == TerminationCondition.infeasible:
        # After its time CBC may call infeasible what it has not decided
        proven = monotonic() - start_s < time_limit_s
        return SolverResult(SolverStatus.INFEASIBLE if proven else SolverStatus.UNKNOWN)
    old_values = [(variable, variable.value) for variable in model.component_data_objects(pyo.Var)]
    results.solver.status = ProcessStatus.ok  # else Pyomo warns of a solution that is not the best
    model.solutions.load_from(results, default_variable_value=0.0)
    if not _is_satisfied(model):
        for variable, value in old_values:
            variable.set_value(value, skip_validation=True)
        return SolverResult(SolverStatus.UNKNOWN)
    if results.solver.termination_condition == TerminationCondition.optimal:
        return SolverResult(SolverStatus.OPTIMAL, gap=0.0)
    return SolverResult(SolverStatus.FEASIBLE, gap=_gap(model, bound))


def _run_cbc(model: pyo.ConcreteModel, time_limit_s: float) -> tuple[Any, float | None]:
    """Pyomo's results, and the bound on the objective. Raises: TimeoutExpired if CBC had to be killed."""
    cbc = pyo.SolverFactory("cbc", executable=str(Path(cbcbox.cbc_dist_dir(), "bin", "cbc")))
    options = OPTIONS | {"sec": time_limit_s}  # replaces the limit below, after which Pyomo kills CBC
    with TemporaryDirectory(prefix="dilaserve-cbc-") as directory:
        log = Path(directory, "log.txt")
        try:
            results = cbc.solve(
                model, options=options, timelimit=time_limit_s + GRACE_S, load_solutions=False, logfile=str(log)
            )
        except ApplicationError as error:
            raise DilaserveError(f"CBC failed: {error}") from error
        bounds = BOUND.findall(log.read_text(encoding="utf-8"))
    return results, float(bounds[-1]) if bounds else None


def _is_satisfied(model: pyo.ConcreteModel) -> bool:
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
