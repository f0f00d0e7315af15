"""Other readings of the paper's algorithms, beside the policy `paper` on the same cluster."""

import pytest

from experiments.paper.variants import AT_ASSIGNMENT, SMALLEST_SLO
from services.scheduler.events import Command
from shared.arrays import unpack_float32
from tests.builders import arrival
from tests.support.scripted_cell import jobs_in, make_cell


def threshold_of(commands: list[Command]) -> float:
    [sent] = jobs_in(commands)
    return round(float(unpack_float32(sent.jobs.thresholds)[0]), 6)


@pytest.mark.parametrize(("policy", "later"), [("paper", 0.7), (AT_ASSIGNMENT, 0.9)])
def test_a_threshold_falls_at_the_next_step_or_only_when_the_request_is_assigned(policy: str, later: float) -> None:
    """64 steps of 0.129 s fit the SLO at first; after a slow first step, 60 steps do not."""
    cell = make_cell({"a-1": 1}, load_control=False, policy=policy)
    commands = cell.send(arrival("r", slo_s=64 * 0.13))
    assert threshold_of(commands) == 0.9
    cell.now_s += 2.0
    assert threshold_of(cell.answer(commands)) == later


def test_with_the_smallest_slo_fewer_requests_keep_the_highest_threshold() -> None:
    lowest = {}
    for policy in ("paper", SMALLEST_SLO):
        cell = make_cell({"a-1": 1}, policy=policy)
        cell.send(arrival("tight", slo_s=30.0), *[arrival(f"r{i}", slo_s=600.0) for i in range(20)])
        lowest[policy] = float(cell.core.table.level.min(where=cell.core.table.ticket != 0, initial=1.0))
    assert lowest[SMALLEST_SLO] < lowest["paper"]
