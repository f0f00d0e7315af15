"""The scheduler refuses a new request that cannot meet its SLO, if the request allows it."""

from typing import Any

import pytest

from services.scheduler.algorithms.refusal import MAX_RETRY_S, OPTIMISTIC_SHARE, UNCONFIRMED_FACTOR
from services.scheduler.events import Command, FinishRequest, RequestArrived, RequestCancelled, SendProgress
from services.scheduler.registry import POLICIES
from services.scheduler.state.observations import CONFIRMED_AFTER
from shared.messages.requests import ACCEPT_S, ACCEPTED, OutcomeStatus
from tests.builders import arrival
from tests.support.scripted_cell import TOKENS_PER_STEP, ScriptedCell, make_cell

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
