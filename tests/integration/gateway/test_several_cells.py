"""A gateway that serves one model with two cells: each request goes to one of them, and is found wherever it is."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from shared.text import TextModel
from tests.support.gateway import LIMIT_S, MODEL, ONE_CELL, OWN_CELL, claim_of, text_of
from tests.support.nats import NatsServer
from tests.support.two_cells import FIRST_ANSWER, PATH, SECOND_ANSWER, TURNS, TwoCells, two_cells
from tests.support.waiting import eventually

pytestmark = ONE_CELL


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_cells(nats_server: NatsServer, text: TextModel) -> AsyncIterator[TwoCells]:
    async with two_cells(nats_server, text, text, store_responses=True) as cells:
        yield cells


@pytest_asyncio.fixture(loop_scope="module")
async def cells(shared_cells: TwoCells) -> TwoCells:
    await shared_cells.reset()
    return shared_cells


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
    async with cells.second.withholding(cells.complete()):
        replies = [await cells.complete() for _ in range(3)]
    assert [text_of(reply, stream=False) for reply in replies] == [FIRST_ANSWER] * 3
    await bus.js.update_stream(stream)


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


@OWN_CELL
async def test_a_cell_that_has_stopped_is_passed_by_and_its_outcomes_are_found(
    nats_server: NatsServer, text: TextModel
) -> None:
    async with two_cells(nats_server, text, text) as cells:
        keyed, second = {"Idempotency-Key": "once"}, cells.second
        await cells.prefer(second)
        before = await cells.complete(headers=keyed)
        assert text_of(before, stream=False) == SECOND_ANSWER
        await cells.stops.aclose()
        bucket = await second.bus.bucket(second.bus.subjects.instances_bucket)
        await bucket.delete("worker-test")
        await eventually(lambda: cells.cluster(second), lambda found: "no instance is ready" in (found["reason"] or ""))
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
        async with asyncio.timeout(LIMIT_S), cell.withholding(cells.complete()) as request_id:
            found = await cells.gateway.http.get(f"/v1/requests/{request_id}")
            assert found.json()["status"] == "in_progress"
            assert (await cells.gateway.http.post(f"/v1/requests/{request_id}/cancel")).status_code == 202
            assert await cell.cancelled.get() == request_id


async def test_a_stored_response_is_continued_in_any_cell(cells: TwoCells) -> None:
    async with cells.gateway.openai() as client:
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
    async with cells.gateway.openai() as client:
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
