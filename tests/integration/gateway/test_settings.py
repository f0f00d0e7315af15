"""Settings of a gateway: its most requests in flight, tables of tiers and efforts, and the storage of responses."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError

from shared.arrays import unpack_int32
from shared.bus.client import Bus
from shared.messages.requests import ChatMessage, OutcomeStatus
from shared.text import TextModel
from tests.support.gateway import CHAT, MODEL, ONE_CELL, OWN_CELL, RunningGateway
from tests.support.scheduler import ANSWER, AnsweringScheduler
from tests.support.waiting import reached

pytestmark = ONE_CELL

PATH = "/v1/chat/completions"
QUESTIONS = [{"type": "predicate", "instructions": "b"}] * 3


@pytest.fixture(scope="module")
def changes() -> dict[str, Any]:
    tables = {"service_tiers": ("flex=60000:-20",), "reasoning_efforts": ("high=0.9",)}
    return {"max_active_requests": 2, "store_responses": True, **tables}


async def test_concurrent_requests_never_exceed_the_gateways_limit(gateway: RunningGateway) -> None:
    gateway.scheduler.hold = asyncio.Event()
    names = [{"Idempotency-Key": f"pears-{number}"} for number in range(6)]
    sent = [asyncio.create_task(gateway.http.post(PATH, json=CHAT, headers=name)) for name in names]
    await reached(lambda: sum(reply.done() for reply in sent) == 4)
    gateway.scheduler.hold.set()
    replies = [await reply for reply in sent]
    refused = [reply for reply in replies if reply.status_code != 200]
    assert len(refused) == 4
    for reply in refused:
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (PATH, {**CHAT, "n": 3}, "n"),
        ("/v1/decisions", {"model": MODEL, "input": "a", "questions": QUESTIONS}, "questions"),
    ],
)
async def test_more_choices_than_the_limit_are_a_bad_request(
    gateway: RunningGateway, path: str, fields: dict[str, Any], param: str
) -> None:
    error = (await gateway.http.post(path, json=fields)).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param)
    assert "the limit of this gateway is 2 requests in flight" in error["message"]


async def test_openais_client_names_a_tier_and_an_effort(gateway: RunningGateway, client: AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(**CHAT, service_tier="flex", reasoning_effort="high")
    with pytest.raises(BadRequestError, match="accepted: auto, default, flex") as refusal:
        await client.chat.completions.create(**CHAT, service_tier="priority")
    [request] = gateway.scheduler.requests
    assert (request.slo_s, request.priority, request.min_threshold) == (60.0, -20, 0.9)
    assert (reply.service_tier, refusal.value.param) == ("flex", "service_tier")


async def test_headers_give_the_fields_of_clients_that_cannot_add_them(gateway: RunningGateway) -> None:
    headers = {
        "X-Dilaserve-Slo-Ms": "700",
        "X-Dilaserve-Priority": "5",
        "X-Dilaserve-Min-Threshold": "0.75",
        "X-Dilaserve-Block-Length": "8",
    }
    reply = await gateway.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    [request] = gateway.scheduler.requests
    assert (request.slo_s, request.priority, request.min_threshold, request.block_length) == (0.7, 5, 0.75, 8)
    assert reply.json()["dilaserve"]["slo_ms"] == 700


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("X-Dilaserve-Slo-Ms", "soon", "must be a number"),
        ("X-Dilaserve-Slo-Ms", "nan", "must be finite"),
        ("X-Dilaserve-Priority", "high", "must be an integer"),
        ("X-Dilaserve-Min-Threshold", "1.5", "must be at most 1"),
    ],
)
async def test_an_invalid_header_is_refused_by_name(
    gateway: RunningGateway, name: str, value: str, reason: str
) -> None:
    refused = await gateway.http.post("/v1/chat/completions", json=CHAT, headers={name: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["message"]) == (400, name, f"{name} {reason}")


async def test_a_line_of_a_batch_may_name_a_tier(gateway: RunningGateway, client: AsyncOpenAI) -> None:
    body = {**CHAT, "service_tier": "flex"}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    file = await client.files.create(file=("in.jsonl", line.encode()), purpose="batch")
    await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    await reached(lambda: len(gateway.scheduler.requests) == 1)
    [request] = gateway.scheduler.requests
    assert (request.slo_s, request.priority) == (60.0, -50)


ASK: dict[str, Any] = {"model": "tiny-llada", "input": "How many pears?"}


async def stream_of(client: AsyncOpenAI, **fields: Any) -> Any:
    """The last event's response."""
    events: list[Any] = [event async for event in await client.responses.create(**fields, stream=True)]
    return events[-1].response


def last_prompt(scheduler: AnsweringScheduler) -> list[int]:
    return list(unpack_int32(scheduler.requests[-1].prompt_ids or b""))


def prompt_of(text: TextModel, *turns: tuple[str, str]) -> list[int]:
    messages = [{"role": role, "content": content} for role, content in turns]
    return list(text.encode_chat(msgspec.convert(messages, list[ChatMessage])))


async def test_a_response_continues_the_whole_conversation_before_it(
    client: AsyncOpenAI, scheduler: AnsweringScheduler, text: TextModel
) -> None:
    first = await client.responses.create(**ASK, instructions="Be brief.")
    second = await stream_of(client, **ASK | {"input": "Sure?"}, previous_response_id=first.id)
    third = await client.responses.create(**ASK | {"input": "And apples?"}, previous_response_id=second.id)
    assert (third.previous_response_id, third.to_dict()["store"]) == (second.id, True)
    turns = ("user", "How many pears?"), ("assistant", ANSWER), ("user", "Sure?"), ("assistant", ANSWER)
    assert last_prompt(scheduler) == prompt_of(text, *turns, ("user", "And apples?"))
    again = await client.responses.create(**ASK | {"input": "Sure?"}, previous_response_id=first.id)
    assert again.id != second.id
    assert last_prompt(scheduler) == prompt_of(text, *turns[:3])


async def test_the_result_of_a_call_continues_the_response_with_the_call(
    client: AsyncOpenAI, scheduler: AnsweringScheduler, text: TextModel
) -> None:
    call = '{"name": "add", "arguments": {}}'
    scheduler.answer = lambda _: call
    tools: Any = [{"type": "function", "name": "add"}]
    first = await client.responses.create(**ASK, tools=tools)
    result: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "3"}
    second = await client.responses.create(**ASK | {"input": [result]}, previous_response_id=first.id)
    turns = ("user", "How many pears?"), ("assistant", call), ("user", "Result of the function: 3")
    assert last_prompt(scheduler) == prompt_of(text, *turns)
    await client.responses.create(**ASK | {"input": "Sure?"}, previous_response_id=second.id)
    assert last_prompt(scheduler) == prompt_of(text, *turns, ("assistant", call), ("user", "Sure?"))
    sent_back = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    third = await client.responses.create(**ASK | {"input": [sent_back, result]})
    assert third.to_dict()["store"] is False


async def test_a_response_with_store_false_cannot_be_continued(client: AsyncOpenAI) -> None:
    kept_by_client = await client.responses.create(**ASK, store=False)
    assert kept_by_client.to_dict()["store"] is False
    with pytest.raises(BadRequestError, match="not found") as refused:
        await client.responses.create(**ASK, previous_response_id=kept_by_client.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize("unknown", ["resp_1", "resp_*", "resp_a.b", "", "resp_" + "x" * 80])
async def test_an_unknown_response_is_refused_by_name(client: AsyncOpenAI, unknown: str) -> None:
    with pytest.raises(BadRequestError, match="previous response") as refused:
        await client.responses.create(**ASK, previous_response_id=unknown)
    assert refused.value.code == "previous_response_not_found"


async def test_a_failed_response_cannot_be_continued(client: AsyncOpenAI, scheduler: AnsweringScheduler) -> None:
    scheduler.status = OutcomeStatus.FAILED
    failed = await stream_of(client, **ASK)
    with pytest.raises(BadRequestError, match="never completed"):
        await client.responses.create(**ASK, previous_response_id=failed.id)


async def test_a_conversation_beyond_the_models_room_names_the_input(client: AsyncOpenAI) -> None:
    first = await client.responses.create(**ASK | {"input": "x" * 300})
    with pytest.raises(BadRequestError) as refused:
        await client.responses.create(**ASK | {"input": "y" * 300}, previous_response_id=first.id)
    assert refused.value.param == "input"


@OWN_CELL
async def test_a_response_that_cannot_be_stored_is_refused(gateway: RunningGateway, bus: Bus) -> None:
    await bus.js.delete_key_value(bus.subjects.conversations_bucket)
    async with gateway.openai() as client:
        with pytest.raises(InternalServerError, match="cannot store the response") as refused:
            await client.responses.create(**ASK)
        assert (refused.value.status_code, "retry-after" in refused.value.response.headers) == (503, True)
        assert (await client.responses.create(**ASK, store=False)).output_text == ANSWER
