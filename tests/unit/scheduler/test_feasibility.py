"""Requests whose deadline no threshold meets take nothing from the others."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.scheduler.algorithms.feasibility import FEASIBLE_AGAIN, PLANNED_TIMES, least_seconds, plan_slos
from services.scheduler.algorithms.work_estimates import BatchLatency
from services.scheduler.state.request_table import RequestTable
from tests.builders import arrival
from tests.support.present import present
from tests.support.scripted_cell import THRESHOLDS, ScriptedCell, jobs_in, make_cell, registered


def cell_of(**options: Any) -> ScriptedCell:
    return make_cell({"a-1": 1}, policy="dilaserve", caching=True, **options)


def level_of(cell: ScriptedCell, name: str) -> float:
    return float(cell.core.table.level[cell.core.table.row_of[name]])


def infeasible(cell: ScriptedCell) -> set[str]:
    table = cell.core.table
    return {name for name, row in table.row_of.items() if table.infeasible[row]}


@pytest.mark.parametrize("slo_s", [0.001, 0.01, 0.1])
def test_an_impossible_slo_does_not_lower_the_level_of_others(slo_s: float) -> None:
    possible = [arrival(f"r{i}", slo_s=165.0) for i in range(10)]
    alone, together = cell_of(), cell_of()
    alone.send(*possible)
    together.send(*possible, *[arrival(f"hasty{i}", slo_s=slo_s) for i in range(2)])
    assert infeasible(together) == {"hasty0", "hasty1"}
    assert level_of(together, "r0") == level_of(alone, "r0") == THRESHOLDS[-1]


@pytest.mark.parametrize(("how", "level"), [("common", THRESHOLDS[-1]), ("lowest", THRESHOLDS[0])])
def test_the_operator_chooses_how_infeasible_requests_are_served(how: str, level: float) -> None:
    cell = cell_of(infeasible_level=how)
    cell.send(arrival("r", slo_s=165.0), arrival("hasty", slo_s=0.001))
    assert (level_of(cell, "r"), level_of(cell, "hasty")) == (THRESHOLDS[-1], level)


def test_an_infeasible_request_waits_behind_those_that_can_be_in_time() -> None:
    cell = make_cell({}, policy="dilaserve")
    cell.send(arrival("hasty", slo_s=0.001), arrival("late", slo_s=10.0))
    cell.now_s += 10.0
    cell.send(arrival("possible", slo_s=60.0))
    [sent] = jobs_in(cell.send(registered("a-1", max_batch_requests=1)))
    assert infeasible(cell) == {"hasty", "late"}
    assert [state.request_id for state in sent.jobs.states] == ["possible"]


@pytest.mark.parametrize(("slo_s", "feasible"), [(1000.0, True), (0.001, False)])
def test_the_reply_shows_whether_the_slo_was_feasible(slo_s: float, feasible: bool) -> None:
    cell = cell_of()
    cell.serve(cell.send(arrival("r", slo_s=slo_s)))
    [finish] = cell.finished
    stats = present(finish.stats)
    assert (stats.slo_feasible, stats.slo_s) == (feasible, slo_s)


def table_with(slo_s: float) -> tuple[RequestTable, Any]:
    table = RequestTable(3)
    return table, np.array([table.add(arrival("r", slo_s=slo_s))])


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_feasible_request_is_planned_by_its_own_slo(slo_s: float, least_s: float) -> None:
    table, rows = table_with(slo_s)
    arrived_s = float(table.arrival_s[rows[0]])
    plan_slos(rows, np.array([least_s]), table, arrived_s)
    assert table.infeasible[rows[0]] == (slo_s < least_s)
    expected_s = slo_s if slo_s >= least_s else PLANNED_TIMES * least_s
    assert table.planned_slo_s[rows[0]] == pytest.approx(expected_s)


@given(st.floats(0.2, 5), st.lists(st.floats(0.99, 1.01), min_size=2, max_size=20))
def test_an_estimate_that_varies_a_little_changes_nothing(slo_s: float, factors: list[float]) -> None:
    """From the first time that it is infeasible on."""
    table, rows = table_with(slo_s)
    arrived_s = float(table.arrival_s[rows[0]])
    plan_slos(rows, np.array([1.02 * slo_s]), table, arrived_s)
    planned_s = float(table.planned_slo_s[rows[0]])
    for factor in factors:
        plan_slos(rows, np.array([factor * slo_s]), table, arrived_s)
        assert table.infeasible[rows[0]]
        assert float(table.planned_slo_s[rows[0]]) == planned_s
    plan_slos(rows, np.array([0.99 * slo_s / FEASIBLE_AGAIN]), table, arrived_s)
    assert not table.infeasible[rows[0]]


def test_one_patient_request_does_not_make_the_infeasible_ones_wait() -> None:
    table = RequestTable(3)
    slos_s = {"hasty": 0.1, "a": 10.0, "b": 12.0, "patient": 86_400.0}
    rows = np.array([table.add(arrival(name, slo_s=slo_s)) for name, slo_s in slos_s.items()])
    plan_slos(rows, np.full(4, 1.0), table, float(table.arrival_s[rows[0]]))
    assert table.infeasible[rows].tolist() == [True, False, False, False]
    assert table.planned_slo_s[rows].tolist() == [12.0, 10.0, 12.0, 86_400.0]


PATIENT_S = 86_400.0


def test_a_patient_request_keeps_its_level_in_an_overload_of_urgent_ones() -> None:
    cell = cell_of()
    cell.send(arrival("patient", slo_s=PATIENT_S), *[arrival(f"r{i}", slo_s=60.0) for i in range(40)])
    assert level_of(cell, "r0") == THRESHOLDS[0]
    assert level_of(cell, "patient") == THRESHOLDS[-1]


def test_patient_requests_have_a_lower_level_if_they_themselves_are_too_many() -> None:
    cell = cell_of()
    cell.send(*[arrival(f"r{i}", output_tokens=2048, slo_s=PATIENT_S) for i in range(300)])
    assert THRESHOLDS[0] < level_of(cell, "r0") < THRESHOLDS[-1]


def test_a_request_is_no_longer_patient_when_its_deadline_is_near() -> None:
    cell = cell_of()
    cell.send(arrival("patient", slo_s=PATIENT_S))
    cell.now_s += PATIENT_S - 60.0
    cell.send(*[replace(arrival(f"r{i}", slo_s=60.0), arrival_s=cell.now_s) for i in range(40)])
    assert level_of(cell, "patient") == THRESHOLDS[0]


def test_a_patient_request_waits_behind_urgent_ones() -> None:
    cell = make_cell({}, policy="dilaserve")
    cell.send(arrival("patient", slo_s=PATIENT_S), arrival("urgent", slo_s=600.0))
    [sent] = jobs_in(cell.send(registered("a-1", max_batch_requests=1)))
    assert [state.request_id for state in sent.jobs.states] == ["urgent"]


@pytest.mark.parametrize(("others", "first"), [(0, "long"), (60, "short")])
def test_in_an_overload_short_requests_go_first(others: int, first: str) -> None:
    cell = make_cell({}, policy="dilaserve", caching=True)
    requests = [arrival("long", output_tokens=1024, slo_s=300.0), arrival("short", output_tokens=32, slo_s=310.0)]
    cell.send(*requests, *[arrival(f"r{i}", output_tokens=512, slo_s=300.0) for i in range(others)])
    [sent] = jobs_in(cell.send(registered("a-1", max_batch_requests=1)))
    assert [state.request_id for state in sent.jobs.states] == [first]


@pytest.mark.parametrize(
    ("overloaded", "slo_s", "paces"),
    [
        (False, 100.0, 1.2),
        (True, 1000.0, 2.0),
        (True, 50.0, 0.6 * 50 / 16),  # at most 60 % of its SLO
        (True, 20.0, 1.2),  # but no less than without an overload
    ],
)
def test_a_request_that_waits_in_an_overload_needs_a_reserve(overloaded: bool, slo_s: float, paces: float) -> None:
    """It takes 16 steps at the lowest threshold, of one second each."""
    cell = make_cell({}, policy="dilaserve", caching=True)
    cell.send(registered("a-1", max_batch_requests=1))
    cell.send(arrival("runs"))
    cell.send(arrival("waits", slo_s=slo_s))
    cell.core.fleet.pace_s[0] = 1.0
    table = cell.core.table
    latency = BatchLatency(cell.core.fleet, tokens=128, block_length=32, recompute_share=0.1)
    rows = np.array([table.row_of["waits"], table.row_of["runs"]])
    waits_s, runs_s = least_seconds(rows, latency, table, cell.core.fleet, overloaded=overloaded).tolist()
    assert waits_s == pytest.approx(16 * paces)
    assert (runs_s == pytest.approx(0.8 * table.least_steps[rows[1]])) == overloaded
