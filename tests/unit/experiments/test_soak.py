"""The accounts of a soak run, and the growth of its processes."""

import pytest

from experiments.soak.accounts import accounts
from experiments.soak.processes import Growth, Sample, growths
from shared.messages.requests import Outcome, OutcomeStatus


def outcome(request_id: str, status: OutcomeStatus = OutcomeStatus.COMPLETED) -> Outcome:
    return Outcome(request_id=request_id, status=status, text=request_id, arrival_s=0.0)


def test_accepted_requests_are_finished_cancelled_or_lost() -> None:
    outcomes = {"a": outcome("a"), "b": outcome("b", OutcomeStatus.CANCELLED), "other": outcome("other")}
    found = accounts({"a", "b", "c"}, outcomes, {"a": "changed", "b": "b"}, duplicated=1, unfinished=2)
    assert (found.accepted, found.lost, found.different) == (3, 1, 1)
    assert found.statuses == {"completed": 1, "cancelled": 1}
    assert (found.duplicated, found.unfinished) == (1, 2)


def test_growth_compares_the_second_and_the_last_quarter() -> None:
    rss_mb = {10: 500, 30: 100, 40: 104, 60: 900, 80: 110, 90: 112}
    samples = [Sample("gateway", at_s, mb, 20) for at_s, mb in rss_mb.items()]
    assert growths([*samples, Sample("worker", 90, 1, 1)], 100) == [Growth("gateway", (102.0, 111.0), (20.0, 20.0))]


@pytest.mark.parametrize(
    ("rss_mb", "descriptors", "flat"),
    [
        ((100, 109), (20, 20), True),
        ((100, 111), (20, 20), False),
        ((10, 17), (20, 20), True),
        ((100, 100), (20, 29), False),
    ],
)
def test_a_leak_is_a_growth_beyond_the_tolerance(
    rss_mb: tuple[float, float], descriptors: tuple[float, float], *, flat: bool
) -> None:
    assert Growth("worker", rss_mb, descriptors).is_flat is flat
