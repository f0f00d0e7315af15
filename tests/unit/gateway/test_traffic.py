"""The load of the last seconds, as the console's charts show it."""

import pytest

from services.gateway.traffic import WINDOW_S, Ended, Traffic, replay


def served(
    at_s: float, latency_s: float = 1.0, *, slo_met: bool = True, threshold: float = 0.9, tokens: int = 10
) -> Ended:
    return Ended(at_s, slo_met, latency_s, threshold, tokens)


def traffic(*requests: Ended) -> Traffic:
    filled = Traffic()
    for request in requests:
        filled.add(request)
    return filled


def test_nothing_is_said_of_what_nobody_asked_for() -> None:
    load = Traffic().load(100.0)
    assert (load.rps, load.tokens_per_s) == (0.0, 0.0)
    assert load.slo_attainment is load.mean_threshold is load.latency_p50_ms is load.latency_p99_ms is None


def test_rates_are_per_second_of_the_window() -> None:
    load = traffic(served(100.0, tokens=10), served(101.0, tokens=40)).load(101.0)
    assert load.rps == pytest.approx(2 / WINDOW_S)
    assert load.tokens_per_s == pytest.approx(50 / WINDOW_S)


def test_a_request_leaves_the_window_in_time() -> None:
    filled = traffic(served(100.0), served(105.0))
    assert filled.load(100.0 + WINDOW_S).rps == pytest.approx(1 / WINDOW_S)
    assert filled.load(105.0 + WINDOW_S).rps == 0.0


def test_a_failed_request_counts_against_the_slo_and_not_in_the_latency() -> None:
    load = traffic(served(100.0, latency_s=2.0), Ended(100.0, slo_met=False)).load(100.0)
    assert load.slo_attainment == 0.5
    assert load.latency_p99_ms == pytest.approx(2000.0)


def test_thresholds_weigh_by_tokens() -> None:
    load = traffic(served(100.0, threshold=0.5, tokens=30), served(100.0, threshold=0.9, tokens=10)).load(100.0)
    assert load.mean_threshold == pytest.approx(0.6)


def test_the_past_is_told_as_it_would_have_been_then() -> None:
    requests = [served(91.5), served(99.0)]
    after, loads = replay(requests, until_s=100.0, seconds=10)
    assert [load.t_s for load in loads] == [91.0 + second for second in range(10)]
    assert [round(load.rps * WINDOW_S) for load in loads] == [0, 1, 1, 1, 1, 1, 1, 1, 2, 2]
    assert after.load(100.0).rps == pytest.approx(2 / WINDOW_S)
