"""Which requests a list has."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.api.request_filter import RequestFilter
from shared.api_keys import ApiKey
from shared.messages.requests import Outcome, OutcomeStatus, UnfinishedQuery
from tests.builders import serving_stats

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
