"""The share of the time in which iterations run, by completed requests."""

import pytest

from services.scheduler.state.computing_share import MIN_ENDED, MIN_SHARE, ComputingShare


@pytest.mark.parametrize(
    ("served_s", "requests", "expected"),
    [
        (2.0, MIN_ENDED, 0.5),
        (2.0, MIN_ENDED - 1, 1.0),  # too few
        (0.5, MIN_ENDED, 1.0),  # iterations take no longer than the request
        (100.0, MIN_ENDED, MIN_SHARE),
    ],
)
def test_the_share_is_the_median_over_the_requests(served_s: float, requests: int, expected: float) -> None:
    share = ComputingShare()
    for _ in range(requests):
        share.record(1.0, served_s)
    assert share.value == expected
