"""Tools in OpenAI's Responses API."""

from typing import Any

import pytest

from shared.arrays import unpack_int32
from shared.patterns.automaton import compile_pattern
from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway

pytestmark = ONE_CELL

TOOLS: Any = [{"type": "function", "name": "add"}]
BODY: dict[str, Any] = {"model": "tiny-llada", "input": "1+2?", "tools": TOOLS, "max_output_tokens": 96}
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
            body: Any = {**BODY, **fields}
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
    body: Any = {**BODY, "include": ["message.output_text.logprobs"]}
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
    body = {**BODY, "input": items, "tool_choice": "required"}
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
