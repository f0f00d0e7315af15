"""The operator's tables for `service_tier` and `reasoning_effort`."""

from typing import Any

import pytest
from starlette.datastructures import Headers

from services.gateway.api.request_models import TextBody
from services.gateway.api.serving_fields import ServingTables, with_serving_fields
from services.gateway.errors import ApiError
from shared.errors import BadInput

TABLES = ServingTables.read(("flex=60000:-20", "fast=500"), ("low=0.5", "high=0.9"))


def filled(tables: ServingTables = TABLES, headers: dict[str, str] | None = None, **fields: Any) -> TextBody:
    body = TextBody.model_validate({"model": "m", "prompt": "x", **fields})
    return with_serving_fields(body, Headers(headers), tables)


def test_a_tier_names_an_slo_and_a_priority_and_an_effort_a_floor() -> None:
    body = filled(service_tier="flex", reasoning_effort="high")
    assert (body.slo_ms, body.priority, body.min_threshold) == (60000, -20, 0.9)
    assert filled(service_tier="fast").priority is None


@pytest.mark.parametrize("tier", ["auto", "default", None])
def test_a_neutral_tier_changes_nothing(tier: str | None) -> None:
    body = filled(ServingTables(), service_tier=tier)
    assert (body.slo_ms, body.priority) == (None, None)


def test_a_field_comes_before_its_header_and_a_header_before_a_table() -> None:
    headers = {"x-dilaserve-slo-ms": "900.5", "X-DILASERVE-PRIORITY": "3", "X-Dilaserve-Min-Threshold": "0.7"}
    body = filled(headers=headers, service_tier="flex", reasoning_effort="low", priority=0)
    assert (body.slo_ms, body.priority, body.min_threshold) == (900.5, 0, 0.7)


@pytest.mark.parametrize(
    ("tables", "fields", "accepted"),
    [
        (TABLES, {"service_tier": "gold"}, "auto, default, flex, fast"),
        (ServingTables(), {"service_tier": "flex"}, "auto, default"),
        (TABLES, {"reasoning_effort": "medium"}, "low, high"),
    ],
)
def test_an_unknown_name_is_refused_with_those_known(
    tables: ServingTables, fields: dict[str, Any], accepted: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        filled(tables, **fields)
    assert (refusal.value.status, refusal.value.param) == (400, next(iter(fields)))
    assert refusal.value.message.endswith(f"; accepted: {accepted}")


def test_without_a_table_an_effort_is_ignored() -> None:
    body = filled(ServingTables(), reasoning_effort="high")
    assert (body.min_threshold, ServingTables().ignored(body), TABLES.ignored(body)) == (None, ["reasoning_effort"], [])


@pytest.mark.parametrize(
    ("tiers", "efforts"),
    [
        (("flex",), ()),
        (("flex=0",), ()),
        (("flex=86400001",), ()),
        (("flex=1:101",), ()),
        (("auto=5",), ()),
        (("flex=1", "flex=2"), ()),
        ((), ("high=1.1",)),
        ((), ("high=",)),
        ((), ("high=.",)),
        ((), ("high=nan",)),
    ],
)
def test_an_invalid_table_names_its_variable(tiers: tuple[str, ...], efforts: tuple[str, ...]) -> None:
    variable = "DILASERVE_SERVICE_TIERS" if tiers else "DILASERVE_REASONING_EFFORTS"
    with pytest.raises(BadInput, match=variable):
        ServingTables.read(tiers, efforts)
