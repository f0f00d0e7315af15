"""Which requests a list has, its pages, the steps of a stored request, and the loads of the charts."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.api.response_models import Serving
from services.gateway.api.routes.requests import RequestFilter, page_after, step_list
from services.gateway.console.cluster_monitor import MAX_RECENT_LOADS, OLDER_INTERVAL_S, LoadHistory
from services.gateway.console.cluster_view import LoadView
from services.gateway.errors import ApiError
from shared.api_keys import ApiKey
from shared.arrays import pack_float32, pack_int32
from shared.messages.decisions import StepDecisions
from shared.messages.requests import Outcome, OutcomeStatus, UnfinishedQuery
from shared.messages.steps import StepKind
from tests.builders import serving_stats


@given(items=st.lists(st.integers(0, 99).map(str), unique=True, max_size=20), limit=st.integers(1, 8))
def test_the_pages_together_are_the_list(items: list[str], limit: int) -> None:
    read: list[str] = []
    has_more = True
    while has_more:
        page, has_more = page_after(items, read[-1] if read else None, limit, str)
        assert len(page) == limit or not has_more
        read += page
    assert read == items


def test_a_page_after_an_item_that_is_not_listed_is_not_found() -> None:
    assert page_after(["a", "b"], "", 5, str) == (["a", "b"], False)
    with pytest.raises(ApiError, match="no item has the id 'c'") as error:
        page_after(["a", "b"], "c", 5, str)
    assert (error.value.status, error.value.param) == (404, "after")


ALICE = ApiKey("alice-id", "alice")
OPERATOR = ApiKey("operator-id", "operator", operator=True)
KEYS = st.sampled_from(["", "alice-id", "bob-id"])


def outcome(*, key: str = "alice-id", status: OutcomeStatus = OutcomeStatus.COMPLETED, slo_met: bool = True) -> Outcome:
    """A request that the instances w-1 and w-2 served."""
    stats = serving_stats(slo_met=slo_met, instances=["w-1", "w-2"], migrations=1)
    return Outcome(request_id="abcdef", status=status, key=key, stats=stats)


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({}, True),
        ({"status": "completed", "slo_met": True}, True),
        ({"status": "failed"}, False),
        ({"status": "refused"}, False),
        ({"slo_met": False}, False),
        ({"key": "alice-id"}, True),
        ({"key": "bob-id"}, False),
        ({"instance": ""}, True),
        ({"instance": "w-2"}, True),
        ({"instance": "w-3"}, False),
        ({"id": "cde"}, True),
        ({"id": "xyz"}, False),
    ],
)
def test_every_field_of_the_filter_must_match(fields: dict[str, Any], *, accepted: bool) -> None:
    assert RequestFilter(**fields).accepts(outcome(), OPERATOR) is accepted


def test_a_request_without_a_step_has_no_instance_and_no_slo() -> None:
    rejected = Outcome(request_id="abcdef", status=OutcomeStatus.REJECTED)
    assert RequestFilter().accepts(rejected, OPERATOR)
    assert not RequestFilter(slo_met=False).accepts(rejected, OPERATOR)
    assert RequestFilter(instance="").accepts(rejected, OPERATOR)
    assert not RequestFilter(instance="w-1").accepts(rejected, OPERATOR)


@given(owner=KEYS, key=st.none() | KEYS)
def test_no_filter_shows_a_key_the_requests_of_another(owner: str, key: str | None) -> None:
    wanted = RequestFilter(key=key)
    if wanted.accepts(outcome(key=owner), ALICE):
        assert owner == "alice-id"
    query = wanted.query(ALICE)
    assert query is None or query.key == "alice-id"


def test_an_operator_queries_the_unfinished_requests_of_all_keys_or_of_one() -> None:
    assert RequestFilter(instance="w-1", id="cd").query(OPERATOR) == UnfinishedQuery(instance="w-1", id_part="cd")
    assert RequestFilter(key="").query(OPERATOR) == UnfinishedQuery(key="")
    assert RequestFilter(slo_met=True).query(OPERATOR) is None  # it is not known yet


DECISIONS = StepDecisions(
    first_step=3,
    instances=["a-1", "b-1"],
    at_s=pack_float32([0.5, 0.75]),
    blocks=pack_int32([1, 1]),
    kinds=pack_int32([StepKind.RECOMPUTE, StepKind.CACHE]),
    thresholds=pack_float32([0.7, 0.6]),
    allowed=pack_float32([0.9, 0.6]),
    time_left_s=pack_float32([0.25, np.nan]),
    placed_on=pack_int32([1, 0]),
    batch_tokens=pack_int32([96, 192]),
    batch_requests=pack_int32([1, 2]),
    step_latency_s=pack_float32([0.015625, 0.03125]),
)


def test_each_step_is_reported_with_times_in_milliseconds() -> None:
    first, second = step_list(DECISIONS, slo_s=2.0)
    assert first == {
        "step": 3,
        "t_ms": 500.0,
        "block": 1,
        "kind": "recompute",
        "threshold": 0.7,
        "allowed_threshold": 0.9,
        "instance": "b-1",
        "batch_requests": 1,
        "batch_tokens": 96,
        "step_latency_ms": 15.625,
        "time_left_ms": 250.0,
        "slo_left_ms": 1500.0,
    }
    assert (second["step"], second["kind"], second["instance"]) == (4, "cache", "a-1")
    assert second["time_left_ms"] is None


HOURS_S = 3 * 3600


def history(seconds: int) -> LoadHistory:
    """With a load in each second from 1 on."""
    made = LoadHistory()
    for t_s in range(1, seconds + 1):
        made.add(LoadView(t_s=float(t_s)))
    return made


def test_the_last_minutes_are_kept_in_full() -> None:
    times = [load.t_s for load in history(HOURS_S).after(HOURS_S - MAX_RECENT_LOADS)]
    assert times == list(range(HOURS_S - MAX_RECENT_LOADS + 1, HOURS_S + 1))
    assert LoadHistory().after(0.0) == []


def test_the_hour_before_is_kept_with_a_load_in_each_interval() -> None:
    times = [load.t_s for load in history(HOURS_S).after(0.0)]
    assert times == sorted(set(times))
    assert times[0] <= HOURS_S - 3590
    assert max(later - earlier for earlier, later in pairwise(times)) <= OLDER_INTERVAL_S
    assert len(times) < 700


def test_a_mean_threshold_is_shown_without_the_error_of_a_sum() -> None:
    outcome = Outcome(
        request_id="r", status=OutcomeStatus.COMPLETED, stats=serving_stats(mean_threshold=0.8999999999999998)
    )
    assert Serving.of(outcome).mean_threshold == 0.9
