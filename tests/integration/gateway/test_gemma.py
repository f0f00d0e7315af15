"""Chats with a model that writes Gemma's markup and denoises canvases."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway, running, settings_of
from tests.support.gemma_files import write_gemma_files
from tests.support.nats import NatsServer, new_cell
from tests.support.scheduler import AnsweringScheduler, answering

pytestmark = ONE_CELL

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
MESSAGES: Any = [{"role": "user", "content": "How is it in Rome?"}]
REPLY = (
    "<|channel>thought\nA city.<channel|>Let me see."
    '<|tool_call>call:weather{city:<|"|>Rome "EUR"<|"|>,days:[1,2]}<tool_call|><|tool_response>'
)
ARGUMENTS = {"city": 'Rome "EUR"', "days": [1, 2]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gemma(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    directory: Path = write_gemma_files(tmp_path_factory.mktemp("models") / "gemma")
    text = TextModel(directory, "gemma")
    async with (
        new_cell(nats_server) as bus,
        answering(AnsweringScheduler(bus, text, answer=lambda _: REPLY)) as scheduler,
        running(settings_of(bus, directory), text) as gateway,
    ):
        await gateway.until("ready")
        gateway.scheduler = scheduler
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def client(gemma: RunningGateway) -> AsyncIterator[AsyncOpenAI]:
    async with gemma.openai() as client:
        yield client


async def test_a_call_is_read_and_thoughts_are_left_out(client: AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(model="gemma", messages=MESSAGES, tools=[TOOL])
    [choice] = reply.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", ARGUMENTS)


async def test_a_stream_has_the_same_call(client: AsyncOpenAI) -> None:
    content, arguments = "", ""
    async for chunk in await client.chat.completions.create(
        model="gemma", messages=MESSAGES, tools=[TOOL], stream=True
    ):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                arguments += (call.function.arguments if call.function else None) or ""
    assert (content, json.loads(arguments)) == ("Let me see.", ARGUMENTS)


async def test_the_calls_and_results_of_a_chat_are_in_the_prompt(client: AsyncOpenAI, gemma: RunningGateway) -> None:
    first = await client.chat.completions.create(model="gemma", messages=MESSAGES, tools=[TOOL])
    [call] = first.choices[0].message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    messages = [*MESSAGES, first.choices[0].message.to_dict(), result]
    await client.chat.completions.create(model="gemma", messages=messages, tools=[TOOL])
    request, text = gemma.scheduler.requests[-1], gemma.scheduler.text
    shown = text.decode(text.encode_request(request), with_special=True)
    assert '<|tool_call>call:weather{city:<|"|>Rome "EUR"<|"|>' in shown
    assert shown.endswith("Sunny.<turn|>\n<|turn>model\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"extra_body": {"guided_regex": "[0-9]+"}}, "guided_regex"),
        ({"extra_body": {"guided_choice": ["a", "b"]}, "logprobs": True}, "guided_choice"),
    ],
)
async def test_forms_and_required_tools_are_refused_by_name(
    client: AsyncOpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        await client.chat.completions.create(model="gemma", messages=MESSAGES, **fields)
    assert refused.value.param == param


async def test_decisions_are_refused_by_name(client: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        await client.decisions.create(model="gemma", input="a", questions=[{"type": "predicate", "instructions": "b"}])
    assert refused.value.param == "questions"
