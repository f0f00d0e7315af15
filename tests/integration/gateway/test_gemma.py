"""Chats with a model that writes Gemma's markup and denoises canvases."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

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


async def test_a_call_and_a_thought_are_read(client: AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(model="gemma", messages=MESSAGES, tools=[TOOL])
    [choice] = reply.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert choice.message.to_dict()["reasoning_content"] == "A city."
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", ARGUMENTS)


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


FORM = {"type": "json_schema", "name": "a", "schema": PARAMETERS}
OWN_TOOL = {"name": "weather", "input_schema": PARAMETERS}
NO_FORM = "gemma draws all tokens of a block again in each step: it takes no form of the text; leave it out"
NO_LABELS = NO_FORM.replace("form of the text", "labels")
NO_CALL = "the model's syntax of calls cannot be constrained; accepted: tool_choice auto, without strict"
QUESTION = {"type": "predicate", "instructions": "b"}
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
TEXT, RESPONSES, OWN = "/v1/completions", "/v1/responses", "/v1/messages"
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [  # path, fields, the field that the error names, the error
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format", NO_FORM),
    (CHAT, {"guided_regex": "[0-9]+"}, "guided_regex", NO_FORM),
    (CHAT, {"guided_choice": ["a", "b"], "logprobs": True}, "guided_choice", NO_LABELS),
    (CHAT, {"tools": [TOOL], "tool_choice": "required"}, "tools", NO_CALL),
    (TEXT, {"prompt": "a", "structured_outputs": {"regex": "[0-9]+"}}, "structured_outputs.regex", NO_FORM),
    (TEXT, {"prompt": "a", "block_length": 8}, "block_length", "gemma has blocks of 16 tokens, got 8; leave it out"),
    (TEXT, {"prompt": "a", "suffix": "b"}, "suffix", "cannot depend on later text"),
    (RESPONSES, {"input": "a", "text": {"format": FORM}}, "text.format.schema", NO_FORM),
    (OWN, {"max_tokens": 8, "output_config": {"format": FORM}}, "output_config.format.schema", NO_FORM),
    (OWN, {"max_tokens": 8, "tools": [OWN_TOOL], "tool_choice": {"type": "any"}}, "tools", NO_CALL),
    ("/v1/decisions", {"input": "a", "questions": [QUESTION]}, "questions", NO_LABELS),
]


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "gemma"} | ({"messages": MESSAGES} if path in (CHAT, OWN) else {}) | fields


@pytest.mark.parametrize(("path", "fields", "param", "message"), REFUSED)
async def test_work_that_canvases_do_not_support_is_refused_by_name(
    gemma: RunningGateway, path: str, fields: dict[str, Any], param: str, message: str
) -> None:
    reply = await gemma.http.post(path, json=body_of(path, fields))
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert message in error["message"]
