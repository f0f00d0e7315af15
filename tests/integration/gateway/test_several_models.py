"""A gateway that serves the models of two cells."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from dilaserve.stack.ports import free_ports
from services.gateway.settings import GatewaySettings
from shared.text import TextModel
from tests.support.gateway import ONE_CELL, OWN_CELL, running, text_of
from tests.support.nats import NatsServer
from tests.support.scheduler import AnsweringScheduler, answering
from tests.support.tiny_model import write_tiny_sdar
from tests.support.two_cells import FIRST_ANSWER, PATH, SECOND_ANSWER, TURNS, TwoCells, two_cells
from tests.support.waiting import eventually

pytestmark = ONE_CELL

OWN, OTHER = "tiny-llada", "other"


@pytest.fixture(scope="module")
def other_text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel(write_tiny_sdar(tmp_path_factory.mktemp("models") / "tiny-sdar"), OTHER)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_both(nats_server: NatsServer, text: TextModel, other_text: TextModel) -> AsyncIterator[TwoCells]:
    async with two_cells(nats_server, text, other_text) as cells:
        yield cells


@pytest_asyncio.fixture(loop_scope="module")
async def both(shared_both: TwoCells) -> TwoCells:
    """A gateway whose two cells can serve."""
    await shared_both.reset()
    return shared_both


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_served_by_the_cell_of_its_model(both: TwoCells, stream: bool) -> None:
    own, other = [await both.complete(cell, stream=stream) for cell in (both.first, both.second)]
    assert (text_of(own, stream=stream), text_of(other, stream=stream)) == (FIRST_ANSWER, SECOND_ANSWER)
    [own_request], [other_request] = both.first.requests, both.second.requests
    assert (own_request.block_length, other_request.block_length) == (32, 4)  # each model's usual one


async def test_every_form_of_request_chooses_the_cell(both: TwoCells) -> None:
    served: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "1 + 1 = ?"},
        "/v1/responses": {"input": "1 + 1 = ?"},
        "/v1/messages": {"messages": TURNS, "max_tokens": 32},
    }
    counted: dict[str, dict[str, Any]] = {
        "/tokenize": {"messages": TURNS},
        "/detokenize": {"tokens": [65]},
        "/v1/messages/count_tokens": {"messages": TURNS},
    }
    for path, body in served.items():
        reply = await both.gateway.http.post(path, json={"model": OTHER, **body})
        assert SECOND_ANSWER in reply.text
    for path, body in counted.items():
        assert (await both.gateway.http.post(path, json={"model": OTHER, **body})).status_code == 200
    assert (len(both.first.requests), len(both.second.requests)) == (0, len(served))


async def test_the_list_of_models_has_those_of_all_cells(both: TwoCells) -> None:
    async with both.gateway.openai() as client:
        assert [model.id for model in (await client.models.list()).data] == [OWN, OTHER]
        assert (await client.models.retrieve(OTHER)).id == OTHER


async def test_an_unknown_model_is_not_found(both: TwoCells) -> None:
    bodies: dict[str, dict[str, Any]] = {
        PATH: {"messages": TURNS},
        "/v1/completions": {"prompt": "x", "max_tokens": 0, "echo": True},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": TURNS, "max_tokens": 32},
        "/tokenize": {"prompt": "x"},
    }
    http = both.gateway.http
    replies = [await http.post(path, json={"model": "unknown", **body}) for path, body in bodies.items()]
    replies += [
        await http.get(path) for path in ("/v1/models/unknown", "/cluster?model=unknown", "/plans?model=unknown")
    ]
    for refused in replies:
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (404, "model_not_found", "model"), refused.url
        assert error["message"].endswith(f"served: '{OWN}', '{OTHER}'")


async def test_a_request_without_a_model_is_refused_with_their_names(both: TwoCells) -> None:
    without: list[dict[str, Any]] = [{}, {"model": None}, {"model": ""}]
    for model in without:
        refused = await both.gateway.http.post(PATH, json={"messages": TURNS, **model})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "missing_required_parameter")
        assert error["message"] == f"model is required; served: '{OWN}', '{OTHER}'"


async def test_outcomes_of_all_cells_are_found_and_listed(both: TwoCells) -> None:
    replies = [await both.complete(cell) for cell in (both.first, both.second, both.first)]
    ids = [reply.headers["x-request-id"] for reply in replies]
    for request_id, answer in zip(ids, (FIRST_ANSWER, SECOND_ANSWER, FIRST_ANSWER), strict=True):
        assert (await both.gateway.http.get(f"/v1/requests/{request_id}")).json()["text"] == answer

    async def listed_ids() -> list[str]:
        query = {"limit": len(ids)}
        return [each["id"] for each in (await both.gateway.http.get("/v1/requests", params=query)).json()["data"]]

    await eventually(listed_ids, lambda found: found == ids[::-1])  # the list follows the outcomes on the bus


@OWN_CELL
async def test_the_limit_on_active_requests_counts_those_of_all_cells(
    nats_server: NatsServer, text: TextModel, other_text: TextModel
) -> None:
    async with two_cells(nats_server, text, other_text, max_active_requests=1) as cells:
        async with cells.first.withholding(cells.complete()):
            refused = await cells.complete(cells.second)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")


@OWN_CELL
async def test_a_gateway_is_ready_while_one_of_its_models_is_served(
    nats_server: NatsServer, text: TextModel, other_text: TextModel
) -> None:
    async with two_cells(nats_server, text, other_text, serves=False) as cells:
        await cells.gateway.until("ready")
        refused = await cells.complete(cells.second)
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "no instance is ready")
        assert (await cells.complete()).status_code == 200
        await cells.gateway.metric('dilaserve_gateway_not_ready{reason="instances"} 1.0')
        async with answering(cells.second):
            await cells.serves(cells.second)
            await cells.gateway.metric('dilaserve_gateway_not_ready{reason="instances"} 0.0')


@OWN_CELL
async def test_a_cell_whose_bus_is_unavailable_leaves_the_others_served(
    settings: GatewaySettings, text: TextModel, other_text: TextModel, scheduler: AnsweringScheduler
) -> None:
    entry = f"{OTHER}=model@nats://gateway:password@127.0.0.1:{free_ports(1)[0]}/cell1"
    async with running(msgspec.structs.replace(settings, more_models=(entry,)), text, other_text) as gateway:
        await gateway.until("ready")
        refused = await gateway.http.post(PATH, json={"model": OTHER, "messages": TURNS})
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "the bus is not connected")
        assert (await gateway.http.post(PATH, json={"model": OWN, "messages": TURNS})).status_code == 200
        unknown = await gateway.http.get("/v1/requests/nothing")
        assert unknown.status_code == 503, "the other cell may have it"


@OWN_CELL
async def test_requests_of_all_cells_end_before_the_gateway(
    nats_server: NatsServer, text: TextModel, other_text: TextModel
) -> None:
    async with two_cells(nats_server, text, other_text) as cells:
        cells.first.hold = cells.second.hold = asyncio.Event()
        open_requests = [asyncio.create_task(cells.complete(cell)) for cell in (cells.first, cells.second)]
        await cells.first.received()
        await cells.second.received()
        cells.gateway.stop.set()
        await cells.gateway.until(f"{OWN}: the gateway is shutting down; {OTHER}: the gateway is shutting down")
        cells.first.hold.set()
        assert [(await each).status_code for each in open_requests] == [200, 200]
