"""The report of the real-world trace, from handmade results."""

import pytest

from experiments.real_world_trace import RECONFIGURED, StudyResult, cost_of_reconfiguration, figures


def outcome(attainment: float, **changes: object) -> StudyResult:
    latency = {"mean": 5.0, "p50": 4.0, "p90": 9.0, "p99": 12.0}
    result = {"slo_attainment": attainment, "latency_s": latency, "mean_threshold": 0.8, "accuracy": 0.78}
    given = {"low_load_s": 3.0, "high_load_s": 6.0, "slo_s": 13.6, "steps": 4_000_000, "cpu_s": 200.0}
    return StudyResult(result=result, peak_bytes=10**9, **{**given, **changes})  # type: ignore[arg-type]


def test_figures_are_means_over_seeds_with_the_spread_of_attainment() -> None:
    found = figures([outcome(0.9), outcome(0.94, low_load_s=5.0)])
    assert (found["attainment, %"], found["lowest"], found["highest"]) == pytest.approx((92.0, 90.0, 94.0))
    assert found["low load"] == pytest.approx(4.0)


def test_the_cost_of_reconfiguration_is_that_of_the_same_runs() -> None:
    static, changed = [outcome(0.9), outcome(0.8)], [outcome(0.91, low_load_s=2.4), outcome(0.79, low_load_s=2.4)]
    both = {
        "default policy": static,
        "default policy" + RECONFIGURED: changed,
        "DiLaServe": static,
        "DiLaServe" + RECONFIGURED: static,
    }
    first, second = cost_of_reconfiguration(both).strip().splitlines()
    assert "by +0.00 ± 1.00 points" in first
    assert "20.0 % faster" in first
    assert "+0.00 ± 0.00 points" in second
