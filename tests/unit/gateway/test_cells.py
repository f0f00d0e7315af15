"""The cells of a gateway and the operator's tables, from its settings, and the choice among the cells of a model."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from services.gateway.api.request_models import ServedBody, TextBody
from services.gateway.api.serving_fields import ServingTables, with_serving_fields
from services.gateway.errors import ApiError
from services.gateway.routing import CellLoad, route
from services.gateway.served_cells import by_model, served_cells
from services.gateway.settings import GatewaySettings
from shared.errors import BadInput
from shared.settings import read_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DILASERVE_ALLOWED_HOSTS", "https://api.example"),
        ("DILASERVE_ALLOWED_HOSTS", "api.example:8000"),
        ("DILASERVE_ALLOWED_ORIGINS", "app.example"),
        ("DILASERVE_ALLOWED_ORIGINS", "https://app.example/"),
    ],
)
def test_a_value_that_no_request_could_match_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=name):
        read_settings(GatewaySettings, {"DILASERVE_MODEL": "demo", name: value})


NATS_URL = "nats://own:4222"


def settings(*more_models: str) -> GatewaySettings:
    return GatewaySettings(model="models/demo", nats_url=NATS_URL, cell="own", alive_file="a", more_models=more_models)


def test_without_further_models_the_own_cell_is_the_only_one() -> None:
    [own] = served_cells(settings())
    assert (own.model, own.model_name, own.cell, own.nats_url, own.alive_file) == (
        *("models/demo", "demo"),
        *("own", NATS_URL, "a"),
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("big=/models/big@b", ("big", "/models/big", "b", NATS_URL)),
        ("big=GSAI-ML/LLaDA-8B@cell-1", ("big", "GSAI-ML/LLaDA-8B", "cell-1", NATS_URL)),
        ("GSAI-ML/big=m@tls://gateway:p@other:4222/b", ("GSAI-ML/big", "m", "b", "tls://gateway:p@other:4222")),
        ("big=m@nats://other/own", ("big", "m", "own", "nats://other")),
        ("big=m=1@b", ("big", "m=1", "b", NATS_URL)),
    ],
)
def test_an_entry_names_a_model_and_its_cell(entry: str, expected: tuple[str, ...]) -> None:
    own, cell = served_cells(settings(entry))
    assert (cell.model_name, cell.model, cell.cell, cell.nats_url) == expected
    assert (own.alive_file, cell.alive_file, cell.more_models) == ("a", "", ())


@pytest.mark.parametrize("entry", ["big", "big=m", "=m@b", "big=@b", "big=m@", "big=m@B", "big=m@ftp://x/b", "a b=m@b"])
def test_an_entry_of_another_form_is_refused_by_its_number(entry: str) -> None:
    with pytest.raises(BadInput, match=r"DILASERVE_MORE_MODELS: entry 2\b"):
        served_cells(settings("fine=m@fine", entry))


def test_a_refused_entry_does_not_show_its_password() -> None:
    for entry in ("big=m@nats://gateway:secret@other:4222/B", "big=m@nats://gateway:secret@other:port/b"):
        with pytest.raises(BadInput) as refusal:
            served_cells(settings(entry))
        assert "secret" not in refusal.value.message


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("demo=m@b",), "the name demo is there with two models, models/demo and m"),
        (("a=m@b", "a=n@c"), "the name a is there with two models, m and n"),
        (("a=m@b", "a=m@nats://other/b"), "two cells of the model a have the name b"),
        (("a=m@own",), "the cell own is there twice"),
        (("a=m@b", "c=n@b"), "the cell b is there twice"),
    ],
)
def test_a_name_and_a_cell_belong_to_one_model(entries: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        served_cells(settings(*entries))


def test_several_cells_may_serve_one_model() -> None:
    cells = served_cells(settings("demo=models/demo@b", "big=m@c", "demo=models/demo@d"))
    assert [[cell.cell for cell in of_model] for of_model in by_model(cells)] == [["own", "b", "d"], ["c"]]


LOADS = st.builds(
    CellLoad, accepts=st.booleans(), slack=st.floats(-5, 1), requests=st.integers(0, 1000), sent=st.integers(0, 1000)
)
CELLS = st.lists(LOADS, min_size=1, max_size=8)
SEEDS = st.integers(0, 2**32)


def routed(cells: list[CellLoad], seed: int = 0) -> list[int]:
    return list(route(range(len(cells)), cells.__getitem__, random.Random(seed)))


@given(CELLS, SEEDS)
def test_each_cell_that_accepts_requests_is_offered_them_once(cells: list[CellLoad], seed: int) -> None:
    assert sorted(routed(cells, seed)) == [i for i, cell in enumerate(cells) if cell.accepts]


@given(CELLS, SEEDS)
def test_a_full_cell_is_passed_by_while_another_one_has_slack(cells: list[CellLoad], seed: int) -> None:
    some_have_slack = any(cell.accepts and cell.slack_left > 0 for cell in cells)
    first = routed(cells, seed)[:1]
    assert not some_have_slack or [cells[i].slack_left > 0 for i in first] == [True]


@given(CELLS, SEEDS)
def test_further_cells_follow_in_the_order_of_their_slack(cells: list[CellLoad], seed: int) -> None:
    ranks = [cells[i].rank for i in routed(cells, seed)[1:]]
    assert ranks == sorted(ranks, reverse=True)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8, unique=True), SEEDS)
def test_the_cell_with_the_least_slack_is_never_the_first(slacks: list[float], seed: int) -> None:
    cells = [CellLoad(slack=slack) for slack in slacks]
    assert routed(cells, seed)[0] != slacks.index(min(slacks))


@given(st.integers(2, 64), SEEDS)
def test_the_choice_reads_the_loads_of_two_cells(number: int, seed: int) -> None:
    read = list[int]()

    def load_of(cell: int) -> CellLoad:
        read.append(cell)
        return CellLoad(slack=1.0)

    next(route(range(number), load_of, random.Random(seed)))
    assert len(read) == 2


def test_idle_cells_share_the_requests() -> None:
    source, cells = random.Random(0), [CellLoad(slack=1.0)] * 4
    first = Counter(next(route(range(4), cells.__getitem__, source)) for _ in range(4000))
    assert all(900 < first[cell] < 1100 for cell in range(4))


def test_requests_sent_since_the_last_message_fill_a_cell() -> None:
    cell = CellLoad(slack=0.5, requests=100, sent=100)
    assert cell.slack_left == 0.0


TABLES = ServingTables(("flex=60000:-20", "fast=500"), ("low=0.5", "high=0.9"))


def filled(tables: ServingTables = TABLES, headers: dict[str, str] | None = None, **fields: Any) -> ServedBody:
    body = TextBody.model_validate({"model": "m", "prompt": "x", **fields})
    return with_serving_fields(body, Headers(headers), tables)


def test_a_tier_names_an_slo_and_a_priority_and_an_effort_a_floor() -> None:
    body = filled(service_tier="flex", reasoning_effort="high")
    assert (body.slo_ms, body.priority, body.min_threshold) == (60000, -20, 0.9)
    assert filled(service_tier="fast").priority is None


@pytest.mark.parametrize(
    ("tier", "served"), [*((same, same) for same in ("auto", "default", None)), ("flex", "default")]
)
def test_without_tiers_a_tier_changes_nothing(tier: str | None, served: str | None) -> None:
    body = filled(ServingTables(), service_tier=tier)
    assert (body.slo_ms, body.priority, body.service_tier) == (None, None, served)


def test_a_field_comes_before_its_header_and_a_header_before_a_table() -> None:
    headers = {"x-dilaserve-slo-ms": "900.5", "X-DILASERVE-PRIORITY": "3", "X-Dilaserve-Min-Threshold": "0.7"}
    body = filled(headers=headers, service_tier="flex", reasoning_effort="low", priority=0)
    assert (body.slo_ms, body.priority, body.min_threshold) == (900.5, 0, 0.7)


@pytest.mark.parametrize(
    ("field", "name", "accepted"),
    [("service_tier", "gold", "auto, default, flex, fast"), ("reasoning_effort", "medium", "low, high")],
)
def test_an_unknown_name_is_refused_with_those_known(field: str, name: str, accepted: str) -> None:
    fields: dict[str, Any] = {field: name}
    with pytest.raises(ApiError) as refusal:
        filled(**fields)
    assert (refusal.value.status, refusal.value.param) == (400, field)
    assert refusal.value.message.endswith(f"; accepted: {accepted}")


def test_without_a_table_an_effort_is_ignored() -> None:
    body = filled(ServingTables(), reasoning_effort="high")
    assert (body.min_threshold, ServingTables().ignored(body), TABLES.ignored(body)) == (None, ["reasoning_effort"], [])


@pytest.mark.parametrize("tiers", ["flex", "flex=0", "flex=86400001", "flex=1:101", "auto=5", "flex=1,flex=2"])
def test_an_invalid_tier_is_refused_by_its_variable(tiers: str) -> None:
    with pytest.raises(BadInput, match="DILASERVE_SERVICE_TIERS"):
        ServingTables(tiers.split(","), ())


@pytest.mark.parametrize("effort", ["high=1.1", "high=", "high=.", "high=nan"])
def test_an_invalid_effort_is_refused_by_its_variable(effort: str) -> None:
    with pytest.raises(BadInput, match="DILASERVE_REASONING_EFFORTS"):
        ServingTables((), (effort,))
