"""OpenAI's Responses API and its tools, with OpenAI's client."""

from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from shared.arrays import unpack_int32
from shared.messages.requests import OutcomeStatus
from shared.patterns.automaton import compile_pattern
from shared.text import TextModel
from tests.support.gateway import MODEL, ONE_CELL, RunningGateway
from tests.support.scheduler import ANSWER, AnsweringScheduler, confidences_of

pytestmark = ONE_CELL


EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def post(gateway: RunningGateway, **fields: Any) -> httpx.Response:
    return await gateway.http.post("/v1/responses", json={"model": MODEL, "input": "How many pears?", **fields})


async def test_a_whole_response_has_the_text_and_the_usage(client: AsyncOpenAI, scheduler: AnsweringScheduler) -> None:
    response = await client.responses.create(model=MODEL, input="How many pears?", metadata={"a": "b"}, store=True)
    assert (response.status, response.output_text) == ("completed", ANSWER)
    assert response.usage is not None
    assert response.usage.output_tokens == len(response.output_text)
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert (response.metadata, response.incomplete_details, response.error) == ({"a": "b"}, None, None)
    assert response.to_dict()["store"] is False
    Response.model_validate(response.to_dict())  # every required field is present


async def test_instructions_and_parts_are_the_messages_of_a_chat(
    client: AsyncOpenAI, gateway: RunningGateway, text: TextModel
) -> None:
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "How many"}, {"type": "input_text", "text": "?"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "29", "annotations": []}]},
        {"role": "user", "content": "Sure?"},
    ]  # fmt: skip
    await client.responses.create(
        model=MODEL, instructions="Be short.", input=turns, temperature=0.5, top_p=0.9, max_output_tokens=8
    )
    contents = ("system", "Be short."), ("user", "How many\n?"), ("assistant", "29"), ("user", "Sure?")
    messages = [{"role": role, "content": content} for role, content in contents]
    await gateway.http.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": messages, "temperature": 0.5, "top_p": 0.9, "max_tokens": 8},
    )
    response, chat = gateway.scheduler.requests
    assert response.prompt_ids == chat.prompt_ids
    assert (response.temperature, response.top_p, response.max_tokens) == (0.5, 0.9, 8)


async def respond(client: AsyncOpenAI, *, stream: bool = True, **fields: Any) -> tuple[Any, list[Any]]:
    """The response, and the events of its stream."""
    body: Any = {"model": MODEL, "input": "How many pears?", **fields}
    if not stream:
        return await client.responses.create(**body), []
    events: list[Any] = [event async for event in await client.responses.create(**body, stream=True)]
    return events[-1].response, events


async def test_a_stream_has_openais_events_in_order(client: AsyncOpenAI, scheduler: AnsweringScheduler) -> None:
    response, events = await respond(client)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert list(dict.fromkeys(event.type for event in events)) == EVENTS
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(deltas) == ANSWER == response.output_text
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {response.output[0].id}


# Of Open Responses' ResponseResource, which OpenRouter's client checks; OpenAI's own requires fewer.
REQUIRED = {
    *("background", "completed_at", "created_at", "error", "frequency_penalty", "id", "incomplete_details"),
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "object", "output"),
    *("parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt_cache_key", "reasoning"),
    *("safety_identifier", "service_tier", "status", "store", "temperature", "text", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "truncation", "usage"),
}


async def test_each_response_of_a_stream_has_the_fields_that_open_responses_requires(client: AsyncOpenAI) -> None:
    _, events = await respond(client, extra_body={"presence_penalty": 0.5})
    responses = [event.response.to_dict() for event in events if hasattr(event, "response")]
    assert all(each.keys() >= REQUIRED for each in responses)
    assert [(each["presence_penalty"], each["frequency_penalty"]) for each in responses] == [(0.5, 0)] * 3
    *begun, ended = [each["completed_at"] for each in responses]
    assert (begun, ended >= responses[-1]["created_at"]) == ([None, None], True)
    whole, _ = await respond(client, stream=False)
    assert whole.to_dict().keys() >= REQUIRED


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_has_log_probabilities_if_it_includes_them(
    client: AsyncOpenAI, scheduler: AnsweringScheduler, stream: bool
) -> None:
    included = ["message.output_text.logprobs"]
    response, events = await respond(client, stream=stream, include=included, top_logprobs=2)
    found = [event for event in events if event.type.endswith("text.delta")]
    assert [[each.token for each in event.logprobs] for event in found] == [list(event.delta) for event in found]
    [part] = response.output[0].content
    assert [each.token for each in part.logprobs] == list(ANSWER)
    assert [each.logprob for each in part.logprobs] == pytest.approx(np.log(confidences_of(np.arange(len(ANSWER)))))
    assert [each.top_logprobs[0].token for each in part.logprobs] == list(ANSWER)
    assert {len(each.top_logprobs) for each in part.logprobs} == {2}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_response_is_incomplete(client: AsyncOpenAI, scheduler: AnsweringScheduler, stream: bool) -> None:
    response, events = await respond(client, stream=stream, max_output_tokens=3)
    assert [event.type for event in events][-1:] == stream * ["response.incomplete"]
    assert (response.status, response.completed_at, response.output_text) == ("incomplete", None, "The")
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_failed_stream_ends_with_the_error(client: AsyncOpenAI, scheduler: AnsweringScheduler) -> None:
    scheduler.status = OutcomeStatus.FAILED
    response, events = await respond(client)
    assert (events[-1].type, response.status) == ("response.failed", "failed")
    assert response.error.code == "server_error"
    assert "failed" in response.error.message


async def test_a_limit_beyond_the_models_room_is_named_as_in_the_body(gateway: RunningGateway) -> None:
    reply = await post(gateway, max_output_tokens=10**6, prompt_cache_key="x", reasoning={"effort": "low"})
    assert reply.headers["x-dilaserve-adjusted"].startswith("max_output_tokens=")
    assert reply.headers["x-dilaserve-ignored"] == "reasoning.effort, prompt_cache_key"


TOOLS: Any = [{"type": "function", "name": "add"}]
TOOL_BODY: dict[str, Any] = {"model": "tiny-llada", "input": "1+2?", "tools": TOOLS, "max_output_tokens": 96}
CALL = '{"name": "add", "arguments": {}}'
ADDED = ("function_call", "add", "{}")


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


def outputs_of(response: Any) -> list[Any]:
    return [
        (item.type, item.name, item.arguments) if item.type == "function_call" else item.content[0].text
        for item in response.output
    ]


async def test_a_response_has_the_calls_as_items_whole_and_streamed(gateway: RunningGateway) -> None:
    async with gateway.openai() as api:
        for answer, fields, expected in (
            (CALL, {}, [ADDED]),
            (f"{CALL}\n{CALL}", {}, [ADDED, ADDED]),
            (f"{CALL}\n{CALL}", {"parallel_tool_calls": False}, [ADDED]),
            (CALL, {"tool_choice": {"type": "function", "name": "add"}}, [ADDED]),
            (f"{CALL}\nIt is 3.", {}, [ADDED, "It is 3."]),
            ("It is 3.", {}, ["It is 3."]),
            (CALL, {"tool_choice": "none"}, [CALL]),
            (CALL, {"tool_choice": allowed("required", "add")}, [ADDED]),
            (CALL, {"tool_choice": allowed("auto")}, [CALL]),
        ):
            gateway.scheduler.answer = lambda _, answer=answer: answer  # type: ignore[misc]
            body: Any = {**TOOL_BODY, **fields}
            whole = await api.responses.create(**body)
            async with api.responses.stream(**body) as stream:
                events: list[Any] = [event async for event in stream]
                streamed = await stream.get_final_response()
            assert outputs_of(whole) == outputs_of(streamed) == expected
            ended = [event.item for event in events if event.type == "response.output_item.done"]
            items: Any = streamed.output
            ids = [item.id for item in items]
            assert [item.id for item in ended] == ids == list(dict.fromkeys(ids))
            assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("stream", ["false", "true"])
async def test_a_number_that_is_not_finite_comes_back_as_null(gateway: RunningGateway, stream: str) -> None:
    tool = '{"type": "function", "name": "add", "parameters": {"maximum": 1e999}}'
    body = f'{{"input": "1+2?", "tools": [{tool}], "stream": {stream}}}'
    reply = await gateway.http.post("/v1/responses", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 200, reply.text
    assert '"parameters":{"maximum":null}' in reply.text


async def test_tokens_of_a_text_that_may_become_a_call_keep_their_log_probabilities(gateway: RunningGateway) -> None:
    body: Any = {**TOOL_BODY, "include": ["message.output_text.logprobs"]}
    async with gateway.openai() as api:
        for answer in ('{"number": 3}', '{"name'):
            gateway.scheduler.answer = lambda _, answer=answer: answer  # type: ignore[misc]
            events: list[Any] = [event async for event in await api.responses.create(**body, stream=True)]
            deltas = [event for event in events if event.type == "response.output_text.delta"]
            assert "".join(event.delta for event in deltas) == answer
            assert [each.token for event in deltas for each in event.logprobs] == list(answer)
            [part] = events[-1].response.output[0].content
            assert [each.logprob for event in deltas for each in event.logprobs] == [
                each.logprob for each in part.logprobs
            ]


async def test_calls_and_results_are_the_turns_of_the_chat(gateway: RunningGateway, text: TextModel) -> None:
    items = [
        {"role": "user", "content": "1+2?"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "3"}]},
        {"type": "function_call_output", "call_id": "c2", "output": "4"},
    ]
    body = {**TOOL_BODY, "input": items, "tool_choice": "required"}
    reply = await gateway.http.post("/v1/responses", json=body)
    assert reply.status_code == 200, reply.text
    [request] = gateway.scheduler.requests
    results = "user: Result of add: 3\nuser: Result of add: 4\nassistant: "
    prompt = text.decode(unpack_int32(request.prompt_ids or b""))
    assert prompt.endswith(f"user: 1+2?\nassistant: {CALL}\n{CALL}\n{results}")
    assert compile_pattern(request.pattern).accepts(CALL)
    assert not compile_pattern(request.pattern).accepts("Hello")
    assert reply.json()["tools"][0]["name"] == "add"
    assert reply.json()["tool_choice"] == "required"


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_an_item_of_an_earlier_reply_can_be_named_in_its_place(
    gateway: RunningGateway, text: TextModel, choice: str
) -> None:
    """As the AI SDK does with OpenAI's provider, unless `store` is false."""
    gateway.scheduler.answer = lambda _: f"{CALL}\nLet me see."
    question = {"role": "user", "content": "1+2?"}
    output = (await gateway.http.post("/v1/responses", json={**TOOL_BODY, "input": [question]})).json()["output"]
    assert [item["type"] for item in output] == ["function_call", "message"]
    result = {"type": "function_call_output", "call_id": output[0]["call_id"], "output": "3"}
    named = [{"type": "item_reference", "id": item["id"]} for item in output]
    for items in (output, named):
        body = {**TOOL_BODY, "input": [question, *items, result], "tool_choice": choice}
        reply = await gateway.http.post("/v1/responses", json=body)
        assert reply.status_code == 200, reply.text
    whole, by_name = (request.prompt_ids for request in gateway.scheduler.requests[1:])
    assert by_name == whole
    assert "Let me see." in text.decode(unpack_int32(whole or b""))


@pytest.mark.parametrize("item_id", ["msg_1", "fc_1_0", "rs_1", "msg_*", "resp_1", ""])
async def test_an_item_that_is_not_found_is_named(gateway: RunningGateway, item_id: str) -> None:
    reply = await post(gateway, input=[{"role": "user", "content": "a"}, {"type": "item_reference", "id": item_id}])
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (404, "input[1].id", "not_found")
    assert "send the item itself" in error["message"]
