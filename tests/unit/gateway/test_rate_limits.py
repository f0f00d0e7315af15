"""Limits on a key's requests per minute."""

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission.rate_limits import RateLimits


def test_a_burst_of_one_minutes_requests_passes_then_one_per_interval() -> None:
    rates = RateLimits()
    assert [rates.acquire("a", 6, 100.0) for _ in range(6)] == [0.0] * 6
    assert rates.acquire("a", 6, 100.0) == 10.0
    assert rates.acquire("a", 6, 104.0) == 6.0
    assert rates.acquire("a", 6, 110.0) == 0.0


def test_each_key_and_limit_is_counted_separately() -> None:
    rates = RateLimits()
    assert rates.acquire("a", 1, 0.0) == 0.0
    assert rates.acquire("a", 1, 0.0) > 0
    assert rates.acquire("b", 1, 0.0) == 0.0
    assert rates.acquire("a", 2, 0.0) == 0.0


@given(per_minute=st.integers(1, 600), waits_s=st.lists(st.floats(0, 30), max_size=200))
def test_requests_never_exceed_one_burst_plus_the_rate(per_minute: int, waits_s: list[float]) -> None:
    rates, now_s, allowed = RateLimits(), 50.0, 0
    for wait_s in waits_s:
        now_s += wait_s
        allowed += rates.acquire("a", per_minute, now_s) == 0.0
    assert allowed <= per_minute + (now_s - 50.0) * per_minute / 60 + 1e-6
