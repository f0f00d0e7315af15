"""`previous_response_id`: a response continues a stored one."""

from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError

from shared.arrays import unpack_int32
from shared.bus.client import Bus
from shared.messages.requests import ChatMessage, OutcomeStatus
from shared.text import TextModel
from tests.support.gateway import ONE_CELL, OWN_CELL, RunningGateway
from tests.support.scheduler import ANSWER, AnsweringScheduler

pytestmark = ONE_CELL

ASK: dict[str, Any] = {"model": "tiny-llada", "input": "How many pears?"}


@pytest.fixture(scope="module")
def changes() -> dict[str, Any]:
    return {"store_responses": True}


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
