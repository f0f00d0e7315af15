"""The slack that a scheduler publishes, under every policy."""

from itertools import pairwise

import pytest

from services.scheduler.monitoring.cell_slack import cell_slack
from services.scheduler.registry import POLICIES
from tests import builders
from tests.builders import arrival
from tests.support.scripted_cell import draining, make_cell


@pytest.mark.parametrize("policy", POLICIES)
def test_slack_falls_with_each_request_and_rises_with_each_instance(policy: str) -> None:
    few, many = (make_cell({f"{i}-1": 1 for i in range(n)}, policy=policy) for n in (1, 4))
    assert cell_slack(few.core, 0) == cell_slack(many.core, 0) == 1.0
    slacks = list[float]()
    for i in range(4):
        few.send(arrival(f"r{i}", slo_s=1000.0))
        many.send(arrival(f"r{i}", slo_s=1000.0))
        assert cell_slack(few.core, 0) < cell_slack(many.core, 0) < 1.0
        slacks.append(cell_slack(few.core, 0))
    assert all(later < earlier for earlier, later in pairwise(slacks))


def test_a_cell_with_more_work_than_fits_the_slos_has_none() -> None:
    cell = make_cell({"a-1": 1}, policy="dilaserve")
    cell.send(*[arrival(f"r{i}", slo_s=165.0) for i in range(80)])
    assert cell_slack(cell.core, 0) < 0


def test_requests_outside_the_core_take_places() -> None:
    cell = make_cell({"a-1": 1})
    [places] = cell.core.fleet.max_requests[cell.core.fleet.open].tolist()
    assert cell_slack(cell.core, places // 2) == 0.5
    assert cell_slack(cell.core, 2 * places) == -1.0


def test_a_cell_without_an_open_instance_has_no_slack() -> None:
    cell = make_cell({"a-1": 1})
    cell.send(draining("a-1"))
    assert cell_slack(cell.core, 0) == 0.0


def test_instances_without_a_profile_count_by_their_places() -> None:
    cell = make_cell({}, policy="fixed")
    cell.send(*[builders.registered(f"{i}-1") for i in range(16)])
    cell.send(arrival("r"))
    assert 0.99 < cell_slack(cell.core, 0) < 1.0
