"""Requests are refused if they would be late even at the lowest threshold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission.slo_admission import MAX_RETRY_S, SloAdmission
from shared.arrays import pack_int32
from shared.messages.requests import Request
from shared.messages.stats import SchedulerStats
from tests.builders import scheduler_stats, work_group, working_stats

NOW_S = 1000.0
ALONE_S = 8 * 0.01  # 64 tokens at 8 per step, in iterations of 100 tokens


def request(slo_s: float | None = 5.0, min_threshold: float = 0.0, priority: int = 0) -> Request:
    return Request(
        request_id="r",
        prompt_ids=pack_int32(range(36)),
        output_tokens=64,
        slo_s=slo_s,
        min_threshold=min_threshold,
        priority=priority,
    )


def wait_s(stats: SchedulerStats | None, candidate: Request, now_s: float = NOW_S) -> float:
    return SloAdmission(default_slo_s=2.0).admit(candidate, stats, NOW_S, now_s)


def least_slo_s(stats: SchedulerStats, min_threshold: float = 0.0, priority: int = 0) -> float:
    """The shortest SLO that is admitted."""
    low, high = 0.0, 1000.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        refused = wait_s(stats, request(middle, min_threshold, priority)) > 0
        low, high = (middle, high) if refused else (low, middle)
    return high


def test_on_an_idle_cluster_the_steps_at_the_lowest_allowed_threshold_count() -> None:
    assert least_slo_s(working_stats(NOW_S)) == pytest.approx(ALONE_S, abs=1e-4)
    assert least_slo_s(working_stats(NOW_S), min_threshold=0.9) == pytest.approx(4 * ALONE_S, abs=1e-4)
    assert least_slo_s(working_stats(NOW_S, lowest_threshold=0.9)) == pytest.approx(4 * ALONE_S, abs=1e-4)


def test_with_a_cache_only_the_first_step_of_each_block_is_a_recompute_step() -> None:
    assert least_slo_s(working_stats(NOW_S, caching=True)) == pytest.approx(2 * 0.01 + 6 * 0.0016, abs=1e-4)


def test_a_request_that_may_be_easy_is_refused_only_if_it_would_be_late_then() -> None:
    assert least_slo_s(working_stats(NOW_S, least_steps_share=0.5)) == pytest.approx(ALONE_S / 2, abs=1e-4)
    assert least_slo_s(working_stats(NOW_S, least_steps_share=0.0)) == pytest.approx(0.01, abs=1e-4)


def test_a_request_that_no_idle_cluster_serves_in_time_may_come_back_late() -> None:
    assert wait_s(working_stats(NOW_S), request(slo_s=0.001)) == MAX_RETRY_S


def test_a_burst_on_an_idle_cluster_is_admitted_up_to_the_slo() -> None:
    admission, stats = SloAdmission(default_slo_s=2.0), working_stats(NOW_S)
    waits_s = [admission.admit(request(slo_s=0.3), stats, NOW_S, NOW_S) for _ in range(40)]
    assert waits_s == [0.0] * 3 + [1.0] * 37
    waits_s = [admission.admit(request(slo_s=0.3), stats, NOW_S, NOW_S + 1.0) for _ in range(40)]
    assert waits_s == [0.0] * 3 + [1.0] * 37


def test_new_statistics_replace_what_was_admitted_before() -> None:
    admission = SloAdmission(default_slo_s=2.0)
    for at_s in (NOW_S, NOW_S + 0.01):
        stats = working_stats(at_s)
        assert admission.admit(request(slo_s=0.1), stats, at_s, at_s) == 0.0
        assert admission.admit(request(slo_s=0.1), stats, at_s, at_s) == 1.0


def test_the_retry_is_when_enough_work_is_done() -> None:
    stats = working_stats(NOW_S, groups=[work_group(requests=100, steps=80.0)])
    # A round of 101 requests takes 1.01 s: 8 rounds take 8.08 s.
    assert least_slo_s(stats) == pytest.approx(8.08, abs=0.01)
    assert wait_s(stats, request(slo_s=None)) == pytest.approx(80.0 - 1.9, abs=1.0)


def test_work_of_lower_priority_does_not_delay() -> None:
    stats = working_stats(NOW_S, groups=[work_group(requests=100, priority=1)])
    assert least_slo_s(stats, priority=2) == pytest.approx(ALONE_S, abs=1e-4)
    assert least_slo_s(stats, priority=1) > 5 * ALONE_S


def test_work_that_is_due_later_does_not_delay_where_deadlines_give_the_order() -> None:
    groups = [work_group(requests=100, due_in_s=50.0), work_group(requests=100, due_in_s=-1.0)]
    assert least_slo_s(working_stats(NOW_S, groups=groups, by_deadline=True)) == pytest.approx(ALONE_S, abs=1e-4)
    assert least_slo_s(working_stats(NOW_S, groups=groups)) > 100 * ALONE_S


def test_a_busy_instance_does_not_delay_a_request_that_an_idle_one_can_serve() -> None:
    groups = [work_group(requests=100)]
    costs = {"instances": 2, "requests": 100, "fewest_requests": 0}
    assert least_slo_s(working_stats(NOW_S, groups=groups, costs=costs)) == pytest.approx(ALONE_S, abs=1e-4)
    waiting = {"instances": 2, "requests": 0, "fewest_requests": 0}
    assert least_slo_s(working_stats(NOW_S, groups=groups, costs=waiting)) == pytest.approx(51 * ALONE_S, abs=1e-3)


def test_without_room_for_all_a_round_takes_several_iterations() -> None:
    flat = [0.01] * 20  # an iteration costs the same at any size
    alone = working_stats(NOW_S, groups=[work_group(requests=39)], costs={"recompute_s": flat})
    assert least_slo_s(alone) == pytest.approx(ALONE_S, abs=1e-4)
    small = working_stats(NOW_S, groups=[work_group(requests=39)], costs={"recompute_s": flat, "max_requests": 10})
    assert least_slo_s(small) == pytest.approx(4 * ALONE_S, abs=1e-4)


def test_without_statistics_or_instances_nothing_is_refused() -> None:
    assert wait_s(None, request(slo_s=0.001)) == 0.0
    assert wait_s(scheduler_stats(at_s=NOW_S), request(slo_s=0.001)) == 0.0


@given(
    requests=st.integers(0, 200),
    steps=st.floats(1, 100),
    slo_s=st.floats(0.2, 5),
    caching=st.booleans(),
    admitted=st.integers(0, 20),
)
def test_a_refused_request_is_admitted_after_the_wait(
    requests: int, steps: float, slo_s: float, caching: bool, admitted: int
) -> None:
    groups = [work_group(requests=requests, steps=steps, recompute_steps=1.0)] if requests else []
    stats, admission = working_stats(NOW_S, groups=groups, caching=caching), SloAdmission(default_slo_s=2.0)
    for _ in range(admitted):
        admission.admit(request(slo_s=100.0), stats, NOW_S, NOW_S)
    wait = admission.admit(request(slo_s), stats, NOW_S, NOW_S)
    assert wait == 0 or admission.admit(request(slo_s), stats, NOW_S, NOW_S + wait) == 0.0


@given(more=st.integers(1, 100), requests=st.integers(0, 100), steps=st.floats(1, 50), caching=st.booleans())
def test_more_work_never_makes_a_request_earlier(more: int, requests: int, steps: float, caching: bool) -> None:
    def slo_s(count: int) -> float:
        group = work_group(requests=count, steps=steps, recompute_steps=1.0)
        return least_slo_s(working_stats(NOW_S, groups=[group], caching=caching))

    assert slo_s(requests) <= slo_s(requests + more) + 1e-5
