"""The work that the scheduler publishes for forecasts, under every policy."""

import numpy as np
import pytest

from services.scheduler.events import RequestCancelled
from services.scheduler.monitoring.cluster_work import (
    MIN_ENDED,
    MIN_OBSERVED,
    PRIOR_SHARE,
    UNCONFIRMED_SHARE,
    ServedShares,
    cluster_work,
)
from services.scheduler.registry import POLICIES
from shared.messages.requests import Request
from shared.messages.stats import CURVE_TOKENS, ClusterWork
from tests import builders
from tests.builders import arrival
from tests.support.scripted_cell import ScriptedCell, draining, make_cell, registered


def work_of(cell: ScriptedCell, shares: ServedShares | None = None) -> ClusterWork:
    work = cluster_work(cell.core, shares or ServedShares(cell.core.settings), cell.now_s)
    assert work is not None
    return work


@pytest.mark.parametrize("policy", POLICIES)
def test_under_every_policy_all_active_requests_count(policy: str) -> None:
    cell = make_cell({"a-1": 1, "b-1": 1}, policy=policy)
    cell.send(*[arrival(f"r{i}", slo_s=5.0 * (1 + i)) for i in range(6)])
    work = work_of(cell)
    assert sum(group.requests for group in work.groups) == 6
    assert {group.tokens for group in work.groups} == {128.0}
    [of_class] = work.classes
    assert (of_class.instances, of_class.requests, of_class.fewest_requests) == (2, 6, 3)


def test_an_idle_cluster_has_costs_and_no_work() -> None:
    work = work_of(make_cell({"a-1": 1, "b-1": 2}))
    assert work.groups == []
    assert [of_class.instances for of_class in work.classes] == [1, 1]


def test_the_steps_left_are_those_of_the_lowest_allowed_threshold() -> None:
    def steps(policy: str, min_threshold: float) -> float:
        cell = make_cell({"a-1": 1}, policy=policy)
        request = Request(request_id="r", output_tokens=64, min_threshold=min_threshold)
        cell.send(arrival("r", min_threshold=request.min_threshold))
        [group] = work_of(cell).groups
        return group.steps

    assert [steps("dilaserve", floor) for floor in (0.0, 0.7, 0.9)] == [16.0, 32.0, 64.0]
    assert steps("fixed", 0.0) == 64.0  # its threshold is 0.9


def test_similar_requests_share_a_group_and_late_ones_have_their_own() -> None:
    cell = make_cell({"a-1": 1})
    cell.send(*[arrival(f"r{i}", slo_s=10.0 + i / 10) for i in range(5)], arrival("due", slo_s=0.5))
    cell.now_s += 1.0
    groups = sorted(work_of(cell).groups, key=lambda group: group.due_in_s)
    assert [(group.requests, group.due_in_s) for group in groups] == [(1, -0.5), (5, pytest.approx(9.4))]


def test_a_new_instance_does_not_lower_the_confirmed_costs_of_its_kind() -> None:
    cell = make_cell({"a-1": 1})
    for _ in range(MIN_OBSERVED):
        cell.core.fleet.observe(np.array([0]), np.array([1.0]), np.array([1.0]))
    before = work_of(cell).classes[0].recompute_s
    cell.send(registered("b-1"))
    [both] = work_of(cell).classes
    assert (both.instances, both.recompute_s) == (2, before)


def test_an_idle_kind_of_instance_costs_at_most_its_profile() -> None:
    """Iterations under load took three times as long; with no request, no iteration would correct that."""
    cell = make_cell({"a-1": 1})
    cell.send(arrival("r"))
    for _ in range(MIN_OBSERVED):
        cell.core.fleet.observe(np.array([0]), np.array([3.0]), np.array([1.0]))
    loaded = work_of(cell).classes[0].recompute_s
    cell.send(RequestCancelled("r"))
    idle = work_of(cell).classes[0].recompute_s
    assert np.array(idle) * float(cell.core.fleet.correction[0]) == pytest.approx(np.array(loaded))
    assert cell.core.fleet.correction[0] > 1.5


def test_a_profile_counts_in_full_once_iterations_confirm_it() -> None:
    cell = make_cell({"a-1": 1})
    fleet = cell.core.fleet
    at = CURVE_TOKENS.index(1024)
    profile_s = float(fleet.recompute_latency_s(np.array([0]), np.array([1024]))[0])
    assert work_of(cell).classes[0].recompute_s[at] == pytest.approx(UNCONFIRMED_SHARE * profile_s)
    for _ in range(MIN_OBSERVED):
        fleet.observe(np.array([0]), np.array([0.5]), np.array([1.0]))
    assert work_of(cell).classes[0].recompute_s[at] == pytest.approx(0.5 * profile_s)


def test_without_a_profile_iterations_cost_nothing() -> None:
    cell = make_cell({}, policy="fixed")
    cell.send(builders.registered("a-1"))
    assert not any(work_of(cell).classes[0].cache_s)


def test_a_draining_instance_serves_no_new_request() -> None:
    cell = make_cell({"a-1": 1})
    cell.send(draining("a-1"))
    assert cluster_work(cell.core, ServedShares(cell.core.settings), cell.now_s) is None


def test_the_shares_of_steps_are_those_of_completed_requests() -> None:
    cell = make_cell({"a-1": 1}, per_step=4, policy="fixed")
    shares = ServedShares(cell.core.settings)
    assert (shares.mean_steps, shares.least_steps) == (1.0, PRIOR_SHARE)
    for i in range(MIN_ENDED):
        cell.serve(cell.send(arrival(f"r{i}")))
    for finish in cell.finished:
        assert finish.stats is not None
        shares.record(finish, finish.stats)
    assert (shares.mean_steps, shares.least_steps) == pytest.approx((0.25, 0.25))  # 4 tokens per step in place of 1


def test_without_mean_rates_nothing_is_assumed_about_steps() -> None:
    shares = ServedShares(builders.scheduler_core().settings)
    assert (shares.mean_steps, shares.least_steps, shares.computing) == (0.0, 0.0, 1.0)
