"""A gateway that serves one model with two cells: each request goes to one of them, and is found wherever it is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import msgspec
import pytest
from openai import AsyncOpenAI

from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.text import TextModel
from tests.support.gateway import LIMIT_S, RunningGateway, claim_of, running, text_of
from tests.support.nats import NatsServer, new_cell
from tests.support.scheduler import AnsweringScheduler, answering
from tests.support.waiting import eventually, until

MODEL = "tiny-llada"
PATH: Literal["/v1/chat/completions"] = "/v1/chat/completions"
TURNS = [{"role": "user", "content": "How many pears?"}]
FIRST_ANSWER, SECOND_ANSWER = "The answer is 29.", "From the second cell."


@dataclass
class TwoCells:
    """A gateway and the two cells of its model. Tests change the statistics that the cells publish."""

    gateway: RunningGateway
    first: AnsweringScheduler
    second: AnsweringScheduler

    async def complete(self, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", {})
        body = {"model": MODEL, "messages": TURNS, **fields}
        return await self.gateway.http.post(PATH, json=body, headers=headers)

    async def prefer(self, cell: AnsweringScheduler) -> None:
        """Let this cell have the most slack, and wait until the gateway knows."""
        for each in (self.first, self.second):
            slack = 0.9 if each is cell else 0.4
            each.stats = msgspec.structs.replace(each.stats, slack=slack, active=10_000)

            async def is_known(each: AnsweringScheduler = each, slack: float = slack) -> bool:
                return bool((await self.cluster(each))["slack"] == slack)

            await until(is_known)

    async def cluster(self, cell: AnsweringScheduler) -> dict[str, Any]:
        """The state of the cell, as the gateway reports it."""
        reply = await self.gateway.http.get("/cluster", params={"cell": cell.bus.subjects.cell})
        state: dict[str, Any] = reply.json()
        return state

    async def drain(self, cell: AnsweringScheduler) -> None:
        """Let the cell publish that it drains, and wait until the gateway knows."""
        cell.stats = msgspec.structs.replace(cell.stats, draining=True)
        await eventually(lambda: self.cluster(cell), lambda found: "drains" in (found["reason"] or ""))


@pytest.fixture
async def second_bus(bus: Bus, nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with new_cell(nats_server) as connected:
        yield connected


@pytest.fixture
def both_settings(settings: GatewaySettings, second_bus: Bus) -> GatewaySettings:
    entry = f"{MODEL}={settings.model}@{second_bus.subjects.cell}"
    return msgspec.structs.replace(settings, more_models=(entry,), store_responses=True)


@contextlib.asynccontextmanager
async def gateway_of(
    settings: GatewaySettings, text: TextModel, first: AnsweringScheduler, second: AnsweringScheduler
) -> AsyncIterator[TwoCells]:
    async with running(settings, text) as gateway:
        cells = TwoCells(gateway, first, second)

        async def both_serve() -> bool:
            return all([(await cells.cluster(cell))["ready"] for cell in (first, second)])

        await until(both_serve)
        yield cells


@pytest.fixture
async def cells(
    both_settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, second_bus: Bus
) -> AsyncIterator[TwoCells]:
    async with (
        answering(AnsweringScheduler(second_bus, text, answer=lambda _: SECOND_ANSWER)) as second,
        gateway_of(both_settings, text, scheduler, second) as cells,
    ):
        yield cells


def name_of(reply: httpx.Response) -> str:
    return str(reply.json()["dilaserve"]["request_id"])


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_go_to_the_cell_with_more_slack(cells: TwoCells, stream: bool) -> None:
    for cell, answer in ((cells.second, SECOND_ANSWER), (cells.first, FIRST_ANSWER)):
        await cells.prefer(cell)
        assert text_of(await cells.complete(stream=stream), stream=stream) == answer


async def test_the_model_is_listed_once_and_its_cells_are_shown_by_name(cells: TwoCells) -> None:
    assert [model["id"] for model in (await cells.gateway.http.get("/v1/models")).json()["data"]] == [MODEL]
    names = [cell.bus.subjects.cell for cell in (cells.first, cells.second)]
    for path in ("/cluster", "/plans"):
        for name in names:
            reply = await cells.gateway.http.get(path, params={"cell": name})
            assert reply.json().get("cell", name) == name
        unknown = await cells.gateway.http.get(path, params={"cell": "unknown"})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "cell")
        assert unknown.json()["error"]["message"].endswith(", ".join(names))


async def test_a_full_cell_refuses_and_the_other_one_serves(cells: TwoCells) -> None:
    await cells.prefer(cells.second)
    bus = cells.second.bus
    stream = (await bus.js.stream_info(bus.subjects.stream("REQUESTS"))).config
    await bus.js.update_stream(stream.evolve(max_msgs=1))
    cells.second.hold = asyncio.Event()
    held = asyncio.create_task(cells.complete())
    await cells.second.received()
    replies = [await cells.complete() for _ in range(3)]
    assert [text_of(reply, stream=False) for reply in replies] == [FIRST_ANSWER] * 3
    cells.second.hold.set()
    assert text_of(await held, stream=False) == SECOND_ANSWER


async def test_a_draining_cell_ends_its_requests_and_gets_no_more(cells: TwoCells) -> None:
    await cells.prefer(cells.second)
    cells.second.hold = asyncio.Event()
    held = asyncio.create_task(cells.complete(headers={"Idempotency-Key": "held"}))
    await cells.second.received()
    await cells.drain(cells.second)
    replies = [await cells.complete() for _ in range(3)]
    assert [text_of(reply, stream=False) for reply in replies] == [FIRST_ANSWER] * 3
    assert (await cells.gateway.http.get("/ready")).status_code == 200
    repeated = asyncio.create_task(cells.complete(headers={"Idempotency-Key": "held"}))
    cells.second.hold.set()
    assert [text_of(await each, stream=False) for each in (held, repeated)] == [SECOND_ANSWER] * 2


async def test_without_a_cell_that_accepts_requests_each_gives_its_reason(cells: TwoCells) -> None:
    await cells.drain(cells.first)
    await cells.drain(cells.second)
    refused = await cells.complete()
    reason = "the cell drains: it finishes its requests and accepts no more"
    first, second = cells.first.bus.subjects.cell, cells.second.bus.subjects.cell
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert refused.json()["error"]["message"] == f"{first}: {reason}; {second}: {reason}"
    assert await cells.gateway.readiness() == f"{first}: {reason}; {second}: {reason}"


async def test_a_cell_that_has_stopped_is_passed_by_and_its_outcomes_are_found(
    both_settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, second_bus: Bus
) -> None:
    keyed = {"Idempotency-Key": "once"}
    second = AnsweringScheduler(second_bus, text, answer=lambda _: SECOND_ANSWER)
    async with contextlib.AsyncExitStack() as stopping:
        await stopping.enter_async_context(answering(second))
        async with gateway_of(both_settings, text, scheduler, second) as cells:
            await cells.prefer(second)
            before = await cells.complete(headers=keyed)
            assert text_of(before, stream=False) == SECOND_ANSWER
            await stopping.aclose()
            bucket = await second_bus.bucket(second_bus.subjects.instances_bucket)
            await bucket.delete("worker-test")
            await eventually(
                lambda: cells.cluster(second), lambda found: "no instance is ready" in (found["reason"] or "")
            )
            assert text_of(await cells.complete(), stream=False) == FIRST_ANSWER
            found = await cells.gateway.http.get(f"/v1/requests/{name_of(before)}")
            assert found.json()["text"] == SECOND_ANSWER
            assert name_of(await cells.complete(headers=keyed)) == name_of(before)


async def test_a_key_repeats_its_request_in_the_cell_that_has_it(cells: TwoCells) -> None:
    headers = {"Idempotency-Key": "once"}
    await cells.prefer(cells.second)
    first = await cells.complete(headers=headers)
    await cells.prefer(cells.first)
    second = await cells.complete(headers=headers)
    other = await cells.complete(headers={"Idempotency-Key": "another"})
    assert name_of(first) == name_of(second)
    assert [text_of(reply, stream=False) for reply in (second, other)] == [SECOND_ANSWER, FIRST_ANSWER]
    assert sum(request.request_id == name_of(first) for request in cells.second.requests) == 1
    claims = [await claim_of(cell.bus, name_of(first)) for cell in (cells.first, cells.second)]
    assert [claim.is_stored for claim in claims] == [False, True]  # the scheduler of a cell reads those of its own


async def test_a_request_is_found_and_cancelled_in_its_cell(cells: TwoCells) -> None:
    for cell in (cells.second, cells.first):
        await cells.prefer(cell)
        cell.hold = asyncio.Event()
        running_request = asyncio.create_task(cells.complete())
        async with asyncio.timeout(LIMIT_S):
            request_id = await cell.received()
            found = await cells.gateway.http.get(f"/v1/requests/{request_id}")
            assert found.json()["status"] == "in_progress"
            assert (await cells.gateway.http.post(f"/v1/requests/{request_id}/cancel")).status_code == 202
            assert await cell.cancelled.get() == request_id
        cell.hold.set()
        await running_request


async def test_a_stored_response_is_continued_in_any_cell(cells: TwoCells) -> None:
    async with AsyncOpenAI(base_url=f"{cells.gateway.url}/v1", api_key="any", max_retries=0) as client:
        await cells.prefer(cells.second)
        first = await client.responses.create(model=MODEL, input="How many pears?")
        await cells.prefer(cells.first)
        second = await client.responses.create(model=MODEL, input="Sure?", previous_response_id=first.id)
        third = await client.responses.create(model=MODEL, input="Really?", previous_response_id=second.id)
    assert [first.output_text, second.output_text, third.output_text] == [SECOND_ANSWER, FIRST_ANSWER, FIRST_ANSWER]
    assert third.previous_response_id == second.id


async def test_the_lines_of_a_batch_are_served_once_by_either_cell(cells: TwoCells) -> None:
    lines = [
        {"custom_id": str(i), "method": "POST", "url": PATH, "body": {"model": MODEL, "messages": TURNS}}
        for i in range(8)
    ]
    async with AsyncOpenAI(base_url=f"{cells.gateway.url}/v1", api_key="any", max_retries=0) as client:
        content = "\n".join(map(json.dumps, lines)).encode()
        file = await client.files.create(file=("lines.jsonl", content), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint=PATH, completion_window="24h")
        ended = await eventually(
            lambda: client.batches.retrieve(batch.id), lambda found: found.status in ("completed", "failed")
        )
    counts = ended.request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (8, 0)
    assert len(cells.first.requests) + len(cells.second.requests) == 8
    for cell in (cells.first, cells.second):
        assert all([(await claim_of(cell.bus, request.request_id)).is_stored for request in cell.requests])


async def test_the_choices_of_one_body_are_served_by_any_cells(cells: TwoCells) -> None:
    reply = await cells.complete(n=4)
    assert reply.status_code == 200
    assert {choice["message"]["content"] for choice in reply.json()["choices"]} <= {FIRST_ANSWER, SECOND_ANSWER}
