"""A gateway that serves the models of two cells."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import pytest

from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.text import TextModel
from tests.support.gateway import RunningGateway, ready, running, text_of
from tests.support.nats import NatsServer, new_cell
from tests.support.scheduler import AnsweringScheduler, answering
from tests.support.tiny_model import write_tiny_sdar
from tests.support.waiting import eventually

OWN, OTHER = "tiny-llada", "other"
OWN_ANSWER, OTHER_ANSWER = "The answer is 29.", "From the other cell."
PATH: Literal["/v1/chat/completions"] = "/v1/chat/completions"
TURNS = [{"role": "user", "content": "How many pears?"}]


@pytest.fixture
def other_text(tmp_path: Path) -> TextModel:
    return TextModel(write_tiny_sdar(tmp_path / "tiny-sdar"), OTHER)


@pytest.fixture
async def other_bus(bus: Bus, nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with new_cell(nats_server) as connected:
        yield connected


@pytest.fixture
def both_settings(settings: GatewaySettings, other_bus: Bus, tmp_path: Path) -> GatewaySettings:
    entry = f"{OTHER}={tmp_path / 'tiny-sdar'}@{other_bus.subjects.cell}"
    return msgspec.structs.replace(settings, more_models=(entry,))


@pytest.fixture
async def other_scheduler(other_bus: Bus, other_text: TextModel) -> AsyncIterator[AnsweringScheduler]:
    async with answering(AnsweringScheduler(other_bus, other_text, answer=lambda _: OTHER_ANSWER)) as scheduler:
        yield scheduler


@pytest.fixture
async def both(
    both_settings: GatewaySettings,
    text: TextModel,
    other_text: TextModel,
    scheduler: AnsweringScheduler,
    other_scheduler: AnsweringScheduler,
) -> AsyncIterator[RunningGateway]:
    """A gateway whose two cells can serve."""
    async with running(both_settings, text, other_text) as gateway:
        for model in (OWN, OTHER):
            await until_ready(gateway, model)
        yield gateway


async def until_ready(gateway: RunningGateway, model: str) -> None:
    await eventually(lambda: gateway.http.get("/cluster", params={"model": model}), lambda found: found.json()["ready"])


async def complete(gateway: RunningGateway, model: str, **fields: Any) -> httpx.Response:
    return await gateway.http.post(PATH, json={"model": model, "messages": TURNS, **fields})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_served_by_the_cell_of_its_model(
    both: RunningGateway, scheduler: AnsweringScheduler, other_scheduler: AnsweringScheduler, stream: bool
) -> None:
    own, other = [await complete(both, model, stream=stream) for model in (OWN, OTHER)]
    assert (text_of(own, stream=stream), text_of(other, stream=stream)) == (OWN_ANSWER, OTHER_ANSWER)
    [own_request], [other_request] = scheduler.requests, other_scheduler.requests
    assert (own_request.block_length, other_request.block_length) == (32, 4)  # each model's usual one


async def test_every_form_of_request_chooses_the_cell(
    both: RunningGateway, scheduler: AnsweringScheduler, other_scheduler: AnsweringScheduler
) -> None:
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
        reply = await both.http.post(path, json={"model": OTHER, **body})
        assert OTHER_ANSWER in reply.text
    for path, body in counted.items():
        assert (await both.http.post(path, json={"model": OTHER, **body})).status_code == 200
    assert (len(scheduler.requests), len(other_scheduler.requests)) == (0, len(served))


async def test_the_list_of_models_has_those_of_all_cells(both: RunningGateway) -> None:
    async with both.openai() as client:
        assert [model.id for model in (await client.models.list()).data] == [OWN, OTHER]
        assert (await client.models.retrieve(OTHER)).id == OTHER


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", PATH, {"messages": TURNS}),
        ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 0, "echo": True}),
        ("POST", "/v1/responses", {"input": "x"}),
        ("POST", "/v1/messages", {"messages": TURNS, "max_tokens": 32}),
        ("POST", "/tokenize", {"prompt": "x"}),
        ("GET", "/v1/models/unknown", None),
        ("GET", "/cluster?model=unknown", None),
        ("GET", "/plans?model=unknown", None),
    ],
)
async def test_an_unknown_model_is_not_found(
    both: RunningGateway, method: str, path: str, body: dict[str, Any] | None
) -> None:
    refused = await both.http.request(method, path, json=None if body is None else {"model": "unknown", **body})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"].endswith(f"served: '{OWN}', '{OTHER}'")


async def test_outcomes_of_all_cells_are_found_and_listed(both: RunningGateway) -> None:
    replies = [(await complete(both, model)).json() for model in (OWN, OTHER, OWN)]
    ids = [reply["dilaserve"]["request_id"] for reply in replies]
    for request_id, answer in zip(ids, (OWN_ANSWER, OTHER_ANSWER, OWN_ANSWER), strict=True):
        assert (await both.http.get(f"/v1/requests/{request_id}")).json()["text"] == answer

    async def listed_ids() -> list[str]:
        return [each["id"] for each in (await both.http.get("/v1/requests")).json()["data"]]

    await eventually(listed_ids, lambda found: len(found) == len(ids))  # the list follows the outcomes on the bus
    assert await listed_ids() == ids[::-1]
    assert len((await both.http.get("/v1/requests", params={"limit": 2})).json()["data"]) == 2


async def test_the_limit_on_active_requests_counts_those_of_all_cells(
    both_settings: GatewaySettings,
    text: TextModel,
    other_text: TextModel,
    scheduler: AnsweringScheduler,
    other_scheduler: AnsweringScheduler,
) -> None:
    scheduler.hold = asyncio.Event()
    async with running(msgspec.structs.replace(both_settings, max_active_requests=1), text, other_text) as gateway:
        for model in (OWN, OTHER):
            await until_ready(gateway, model)
        held = asyncio.create_task(complete(gateway, OWN))
        await scheduler.received()
        refused = await complete(gateway, OTHER)
        scheduler.hold.set()
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert (await held).status_code == 200


async def test_a_gateway_is_ready_while_one_of_its_models_is_served(
    both_settings: GatewaySettings,
    text: TextModel,
    other_text: TextModel,
    scheduler: AnsweringScheduler,
    other_bus: Bus,
) -> None:
    async with ready(both_settings, text, other_text) as gateway:
        await until_ready(gateway, OWN)
        refused = await complete(gateway, OTHER)
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "no instance is ready")
        assert (await complete(gateway, OWN)).status_code == 200
        await gateway.metric('dilaserve_gateway_not_ready{reason="instances"} 1.0')
        async with answering(AnsweringScheduler(other_bus, other_text)):
            await until_ready(gateway, OTHER)
            await gateway.metric('dilaserve_gateway_not_ready{reason="instances"} 0.0')


async def test_a_cell_whose_bus_is_unavailable_leaves_the_others_served(
    settings: GatewaySettings, text: TextModel, other_text: TextModel, scheduler: AnsweringScheduler
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    entry = f"{OTHER}=model@nats://gateway:password@127.0.0.1:{port}/cell1"
    async with running(msgspec.structs.replace(settings, more_models=(entry,)), text, other_text) as gateway:
        await until_ready(gateway, OWN)
        refused = await complete(gateway, OTHER)
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "the bus is not connected")
        assert (await complete(gateway, OWN)).status_code == 200
        unknown = await gateway.http.get("/v1/requests/nothing")
        assert unknown.status_code == 503, "the other cell may have it"


async def test_requests_of_all_cells_end_before_the_gateway(
    both: RunningGateway, scheduler: AnsweringScheduler, other_scheduler: AnsweringScheduler
) -> None:
    scheduler.hold = other_scheduler.hold = asyncio.Event()
    open_requests = [asyncio.create_task(complete(both, model)) for model in (OWN, OTHER)]
    await scheduler.received()
    await other_scheduler.received()
    both.stop.set()
    await both.until(f"{OWN}: the gateway is shutting down; {OTHER}: the gateway is shutting down")
    scheduler.hold.set()
    assert [(await each).status_code for each in open_requests] == [200, 200]
