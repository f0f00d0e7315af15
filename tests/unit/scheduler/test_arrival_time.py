"""A request's arrival by the scheduler's clock, whatever the clocks of producer and bus show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.io.bus_clock import MAX_UNCORRECTED_S, arrival_time
from shared.messages.requests import Request

NOW_S = 1_000_000.0
DELAY_S = 0.01  # from the publication to the storage
WAITED_S = 3.0  # from the arrival to the publication
clock_errors = st.floats(-5e5, 5e5).filter(lambda ahead_s: abs(ahead_s) > MAX_UNCORRECTED_S + DELAY_S)


def received(*, producer_ahead_s: float = 0.0, bus_ahead_s: float = 0.0, sends_time: bool = True) -> float:
    """The arrival of a request that was published and stored just now, and had waited for WAITED_S before."""
    sent_s = NOW_S - DELAY_S + producer_ahead_s
    request = Request(request_id="r", arrival_s=sent_s - WAITED_S, sent_s=sent_s if sends_time else None)
    return arrival_time(request, stored_s=NOW_S + bus_ahead_s, ahead_s=bus_ahead_s, now_s=NOW_S)


@given(producer_ahead_s=clock_errors, bus_ahead_s=st.just(0.0) | clock_errors)
def test_the_time_waited_at_the_producer_counts_under_any_clocks(producer_ahead_s: float, bus_ahead_s: float) -> None:
    arrival_s = received(producer_ahead_s=producer_ahead_s, bus_ahead_s=bus_ahead_s)
    assert arrival_s == pytest.approx(NOW_S - WAITED_S, abs=1e-6)


@pytest.mark.parametrize("producer_ahead_s", [-0.2, 0.0, 0.2])
def test_a_small_difference_is_not_corrected(producer_ahead_s: float) -> None:
    assert received(producer_ahead_s=producer_ahead_s) == pytest.approx(NOW_S - DELAY_S - WAITED_S + producer_ahead_s)


def test_without_the_time_of_publication_the_arrival_counts_as_given() -> None:
    assert received(producer_ahead_s=-100.0, sends_time=False) == pytest.approx(NOW_S - DELAY_S - WAITED_S - 100.0)


@given(producer_ahead_s=clock_errors, sends_time=st.booleans())
def test_an_arrival_is_never_in_the_future(producer_ahead_s: float, sends_time: bool) -> None:
    assert received(producer_ahead_s=producer_ahead_s, sends_time=sends_time) <= NOW_S


@given(bus_ahead_s=st.floats(-5e5, 5e5))
def test_without_an_arrival_the_time_of_storage_counts(bus_ahead_s: float) -> None:
    arrival_s = arrival_time(Request(request_id="r"), NOW_S - 2.0 + bus_ahead_s, bus_ahead_s, NOW_S)
    assert arrival_s == pytest.approx(NOW_S - 2.0, abs=1e-6)
