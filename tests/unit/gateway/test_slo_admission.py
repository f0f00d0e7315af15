"""Requests are refused if they would be late even at the lowest threshold."""

from services.gateway.admission.slo_admission import MAX_STATS_AGE_S, SloAdmission, min_tokens
from shared.arrays import pack_int32
from shared.messages.requests import Request
from shared.messages.stats import SchedulerStats
from tests.builders import loaded_stats

NOW_S = 1000.0


def request(slo_s: float | None = 5.0, min_threshold: float = 0.0) -> Request:
    prompt_ids = pack_int32(range(36))
    return Request(request_id="r", prompt_ids=prompt_ids, output_tokens=64, slo_s=slo_s, min_threshold=min_threshold)


def late_s(stats: SchedulerStats | None, candidate: Request, now_s: float = NOW_S) -> float:
    return SloAdmission(default_slo_s=2.0).admit(candidate, stats, now_s)


def test_the_minimum_work_is_that_of_the_lowest_allowed_threshold() -> None:
    assert min_tokens(request(), loaded_stats(NOW_S)) == 8 * 100
    assert min_tokens(request(min_threshold=0.6), loaded_stats(NOW_S)) == 32 * 100
    assert min_tokens(request(min_threshold=0.95), loaded_stats(NOW_S)) == 32 * 100
    assert min_tokens(request(), loaded_stats(NOW_S, caching=True)) == 2 * 100 + 6 * 32


def test_a_request_that_would_be_late_is_rejected_with_the_delay() -> None:
    assert late_s(loaded_stats(NOW_S, 4200), request()) == 0.0
    assert late_s(loaded_stats(NOW_S, 5200), request()) == 1.0
    assert late_s(loaded_stats(NOW_S, 2200), request(slo_s=None)) == 1.0


def test_requests_admitted_since_the_last_stats_count() -> None:
    admission, stats = SloAdmission(default_slo_s=2.0), loaded_stats(NOW_S, 3500)
    assert admission.admit(request(), stats, NOW_S) == 0.0
    assert admission.admit(request(), stats, NOW_S) > 0
    assert admission.admit(request(), loaded_stats(NOW_S, 3500), NOW_S) == 0.0


def test_without_recent_stats_nothing_is_rejected() -> None:
    assert late_s(None, request(slo_s=0.001)) == 0.0
    assert late_s(loaded_stats(NOW_S, None), request(slo_s=0.001)) == 0.0
    assert late_s(loaded_stats(NOW_S, 10**9), request(), now_s=NOW_S + MAX_STATS_AGE_S + 0.1) == 0.0
