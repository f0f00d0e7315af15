"""Requests whose deadline no threshold meets take nothing from the others, or are refused if they allow it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.scheduler.algorithms.feasibility import FEASIBLE_AGAIN, PLANNED_TIMES, least_seconds, plan_slos
from services.scheduler.algorithms.refusal import MAX_RETRY_S, OPTIMISTIC_SHARE, UNCONFIRMED_FACTOR
from services.scheduler.algorithms.work_estimates import BatchLatency
from services.scheduler.events import Command, FinishRequest, RequestArrived, RequestCancelled, SendProgress
from services.scheduler.registry import POLICIES
from services.scheduler.state.observations import CONFIRMED_AFTER
from services.scheduler.state.request_table import RequestTable
from shared.messages.requests import ACCEPT_S, ACCEPTED, OutcomeStatus
from tests.builders import arrival
from tests.support.present import present
from tests.support.scripted_cell import THRESHOLDS, TOKENS_PER_STEP, ScriptedCell, jobs_in, make_cell, registered


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
    waits_s, runs_s = least_seconds(rows, latency, table, overloaded=overloaded).tolist()
    assert waits_s == pytest.approx(16 * paces)
    assert (runs_s == pytest.approx(0.8 * table.least_steps[rows[1]])) == overloaded


# 128 tokens, which the profile of `scripted_cell` computes in 129 ms: 16 steps at the lowest threshold of `dilaserve`
ALONE_S = 16 * 0.129 * OPTIMISTIC_SHARE


def shedding(policy: str = "dilaserve", *, instances: int = 1, **options: Any) -> ScriptedCell:
    """Its instances have run enough iterations, as fast as their profile."""
    cell = make_cell({f"i-{i}": 1 for i in range(instances)}, policy=policy, shed=True, **options)
    cell.core.fleet.observed[:instances] = CONFIRMED_AFTER
    return cell


def request(name: str, slo_s: float, *, may_refuse: bool = True, **fields: Any) -> RequestArrived:
    return arrival(name, slo_s=slo_s, may_refuse=may_refuse, **fields)


def refused(commands: list[Command]) -> dict[str, float]:
    """The wait of each refused request."""
    return {
        c.arrived.request.request_id: c.error.retry_after_s or 0.0
        for c in commands
        if isinstance(c, FinishRequest) and c.status is OutcomeStatus.REFUSED and c.error is not None
    }


def accepted(commands: list[Command]) -> list[str]:
    return [c.request_id for c in commands if isinstance(c, SendProgress) and c.progress == ACCEPTED]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_cluster_refuses_an_slo_that_it_cannot_meet_and_accepts_others(policy: str) -> None:
    cell = shedding(policy)
    commands = cell.send(request("short", 0.001), request("long", 60.0))
    assert refused(commands) == {"short": MAX_RETRY_S}
    assert accepted(commands) == ["long"]
    assert list(cell.core.table.row_of) == ["long"]
    assert (cell.core.totals.refused, cell.core.totals.failed) == (1, 0)


@pytest.mark.parametrize(("tokens_per_step", "times"), [(TOKENS_PER_STEP, 1.0), ((2.0, 1.0, 1.0), 2.0)])
def test_the_earliest_end_alone_is_that_of_an_easy_request(tokens_per_step: tuple[float, ...], times: float) -> None:
    """A predictor of half the tokens in a step doubles it."""
    for slo_s, is_refused in ((times * ALONE_S - 0.02, True), (times * ALONE_S + 0.02, False)):
        cell = shedding(tokens_per_step=tokens_per_step)
        assert bool(refused(cell.send(request("r", slo_s)))) == is_refused


def test_costs_that_are_hardly_observed_count_in_part() -> None:
    cell = make_cell({"i-0": 1}, policy="dilaserve", shed=True)
    assert not refused(cell.send(request("r", 1.02 * UNCONFIRMED_FACTOR * ALONE_S)))


def test_the_requests_ahead_delay_a_request_and_more_instances_share_them() -> None:
    def waits(instances: int) -> dict[str, float]:
        return refused(shedding(instances=instances).send(*[request(f"r{i}", 4.0) for i in range(40)]))

    one, two = waits(1), waits(2)
    assert 40 > len(one) > len(two) > 0
    assert "r0" not in one
    assert all(1.0 <= wait_s <= 60.0 for wait_s in one.values())


def test_requests_of_lower_priority_and_later_ones_are_not_ahead() -> None:
    less_urgent: list[dict[str, Any]] = [{"priority": -1, "slo_s": 5.0}, {"slo_s": 60.0}]
    for others in less_urgent:
        cell = shedding()
        cell.send(*[arrival(f"o{i}", **others) for i in range(40)])
        assert not refused(cell.send(request("r", 4.0)))
    cell = shedding("fixed")
    cell.send(*[arrival(f"o{i}", slo_s=600.0) for i in range(40)])
    assert refused(cell.send(request("r", 10.0)))


def test_a_request_in_the_row_of_one_cancelled_in_the_same_cycle_is_refused_once() -> None:
    commands = shedding().send(request("gone", 60.0), RequestCancelled("gone"), request("short", 0.001))
    assert refused(commands) == {"short": MAX_RETRY_S}
    assert sum(isinstance(command, FinishRequest) for command in commands) == 2


def test_a_request_that_waited_long_or_allows_no_refusal_is_accepted() -> None:
    cell = shedding()
    cell.now_s += ACCEPT_S + 1.0
    commands = cell.send(request("old", 0.001), request("firm", 0.001, may_refuse=False))
    assert (refused(commands), accepted(commands)) == ({}, [])
    assert len(cell.core.table) == 2


def test_without_shedding_and_without_an_instance_all_are_accepted() -> None:
    for cell in (make_cell({"i-0": 1}), make_cell({}, shed=True)):
        commands = cell.send(request("r", 0.001))
        assert (refused(commands), accepted(commands)) == ({}, ["r"])
