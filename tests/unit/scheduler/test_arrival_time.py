"""A request's arrival, by its age and the time of its storage."""

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.io.request_consumer import arrival_time
from shared.bus.clock import corrected
from shared.messages.requests import Request

NOW_S = 1_000_000.0
offsets = st.floats(-1e6, 1e6)


@given(age_s=st.floats(0.0, 1e5), stored_ago_s=st.floats(0.0, 1e5))
def test_the_time_at_the_producer_and_on_the_bus_counts(age_s: float, stored_ago_s: float) -> None:
    arrival_s = arrival_time(Request(request_id="r", age_s=age_s), NOW_S - stored_ago_s, NOW_S)
    assert abs(NOW_S - arrival_s - (age_s + stored_ago_s)) < 1e-6


@given(stored_s=st.floats(0.0, 2 * NOW_S))
def test_an_arrival_is_never_in_the_future(stored_s: float) -> None:
    assert arrival_time(Request(request_id="r"), stored_s, NOW_S) == min(stored_s, NOW_S)


@given(known_s=st.none() | offsets, measured_s=offsets, error_s=st.floats(0.0, 1.0))
def test_the_clock_moves_only_if_a_measurement_excludes_it(
    known_s: float | None, measured_s: float, error_s: float
) -> None:
    offset_s = corrected(known_s, measured_s, error_s)
    assert abs(offset_s - measured_s) <= error_s
    assert offset_s == known_s or known_s is None or abs(known_s - measured_s) > error_s
