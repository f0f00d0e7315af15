"""Anthropic's Messages API, with the bodies and headers that its clients send, and its tools."""

import json
from datetime import datetime
from typing import Any

import httpx
import pytest

from shared.arrays import unpack_int32
from shared.messages.requests import OutcomeStatus
from shared.patterns.automaton import compile_pattern
from shared.text import TextModel
from tests.support.gateway import MODEL, ONE_CELL, RunningGateway
from tests.support.scheduler import ANSWER

pytestmark = ONE_CELL


TURNS = [{"role": "user", "content": "How many pears?"}]
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 32, "messages": TURNS}
HEADERS = {"x-api-key": "any", "anthropic-version": "2023-06-01"}


async def post(gateway: RunningGateway, path: str = "", **fields: Any) -> httpx.Response:
    body = {name: value for name, value in (BODY | fields).items() if value is not None}
    return await gateway.http.post(f"/v1/messages{path}", json=body, headers=HEADERS)


def events_of(stream: str) -> list[dict[str, Any]]:
    """The data of the events, each with the name of its type."""
    events = []
    for event in stream.split("\n\n")[:-1]:
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_whole_message_has_anthropics_fields(gateway: RunningGateway) -> None:
    reply = await post(gateway)
    message = reply.json()
    served = message.pop("dilaserve")
    [request] = gateway.scheduler.requests
    prompt_tokens = len(request.prompt_ids or b"") // 4
    assert message == {
        "id": f"msg_{request.request_id}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": ANSWER}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt_tokens,
            "output_tokens": len(ANSWER),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }
    assert (served["request_id"], reply.headers["x-request-id"]) == (request.request_id, request.request_id)


async def test_system_and_blocks_are_the_messages_of_a_chat(gateway: RunningGateway) -> None:
    cached = {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}
    blocks = [{"type": "text", "text": "How many"}, {"type": "text", "text": "?"}]
    turns = [
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": [{"type": "text", "text": "29"}]},
        {"role": "user", "content": "Sure?"},
    ]
    options: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "logit_bias": {"5": 1}}
    billed = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.100; cch=eb6c6;"}
    await post(gateway, system=[billed, cached], messages=turns, stop_sequences=["\n\n", "END"], **options)
    contents = ("system", "Be short."), ("user", "How many\n?"), ("assistant", "29"), ("user", "Sure?")
    chat = {"messages": [{"role": role, "content": content} for role, content in contents], "stop": ["\n\n", "END"]}
    await gateway.http.post("/v1/chat/completions", json={"model": MODEL, "max_tokens": 32, **chat, **options})
    message, completion = gateway.scheduler.requests
    for name in ("prompt_ids", "stop", "temperature", "top_p", "top_k", "logit_bias", "max_tokens", "output_tokens"):
        assert getattr(message, name) == getattr(completion, name)


@pytest.mark.parametrize(
    ("fields", "answer", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "The", "max_tokens", None),
        ({"stop_sequences": ["?", " is"]}, "The answer", "stop_sequence", " is"),
        ({}, ANSWER, "end_turn", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_stop_reason_shows_why_the_text_ends(
    gateway: RunningGateway, fields: dict[str, Any], answer: str, reason: str, sequence: str | None, stream: bool
) -> None:
    reply = await post(gateway, **fields, stream=stream)
    if stream:
        events = events_of(reply.text)
        [delta] = [event["delta"] for event in events if event["type"] == "message_delta"]
        texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
        found = ("".join(texts), delta["stop_reason"], delta["stop_sequence"])
    else:
        message = reply.json()
        found = (message["content"][0]["text"], message["stop_reason"], message["stop_sequence"])
    assert found == (answer, reason, sequence)


async def test_a_stream_has_anthropics_events_in_order(gateway: RunningGateway) -> None:
    reply = await post(gateway, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    start, block, ping, *deltas, block_end, message_delta, end = events_of(reply.text)
    [request] = gateway.scheduler.requests
    input_tokens = len(request.prompt_ids or b"") // 4
    assert start["type"] == "message_start"
    message = start["message"]
    assert (message["id"], message["content"], message["stop_reason"]) == (f"msg_{request.request_id}", [], None)
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (input_tokens, 0)
    assert block == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert ping == {"type": "ping"}
    assert deltas
    assert {(each["type"], each["index"], each["delta"]["type"]) for each in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert block_end == {"type": "content_block_stop", "index": 0}
    assert message_delta["type"] == "message_delta"
    assert message_delta["usage"]["output_tokens"] == len(ANSWER)
    assert message_delta["dilaserve"]["request_id"] == request.request_id
    assert end == {"type": "message_stop"}


async def test_a_failed_stream_ends_with_anthropics_error_event(gateway: RunningGateway) -> None:
    gateway.scheduler.status = OutcomeStatus.FAILED
    last = events_of((await post(gateway, stream=True)).text)[-1]
    assert (last["type"], last["error"]["type"], last["error"]["code"]) == ("error", "api_error", "failed")


async def test_a_thread_is_refused_so_that_anthropics_clients_continue_without_it(gateway: RunningGateway) -> None:
    refused = await post(gateway, thread={"type": "new"})
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert (refused.status_code, refused.json()["error"]["details"]) == (400, details)
    assert "details" not in (await post(gateway, top_p=2)).json()["error"]


async def test_anthropics_batches_are_refused_with_the_alternative(gateway: RunningGateway) -> None:
    for method, path in (("POST", ""), ("GET", ""), ("GET", "/batch_1/results")):
        refused = await gateway.http.request(method, f"/v1/messages/batches{path}", json={})
        assert (refused.status_code, refused.json()["type"]) == (404, "error")
        assert "/v1/batches" in refused.json()["error"]["message"]


async def test_every_error_of_the_path_has_anthropics_form(gateway: RunningGateway) -> None:
    for reply, status, kind in (
        (await post(gateway, model="other"), 404, "not_found_error"),
        (await gateway.http.get("/v1/messages"), 405, "invalid_request_error"),
        (await gateway.http.post("/v1/messages", content="{}"), 415, "invalid_request_error"),
    ):
        assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)


async def test_a_gateway_without_instances_is_overloaded(lonely_gateway: RunningGateway) -> None:
    refused = await post(lonely_gateway)
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded_error")
    assert refused.headers["retry-after"]


async def test_counted_tokens_are_those_of_the_prompt(gateway: RunningGateway, text: TextModel) -> None:
    counted = await post(gateway, "/count_tokens", system="Be short.", max_tokens=None)
    message = (await post(gateway, system="Be short.")).json()
    assert counted.json() == {"input_tokens": message["usage"]["input_tokens"]}
    assert (await post(gateway, "/count_tokens", model="other")).status_code == 404


async def test_a_turn_without_blocks_is_an_empty_text(gateway: RunningGateway) -> None:
    empty = await post(gateway, "/count_tokens", messages=[{"role": "user", "content": []}, *TURNS], max_tokens=None)
    text = await post(gateway, "/count_tokens", messages=[{"role": "user", "content": ""}, *TURNS], max_tokens=None)
    assert (empty.status_code, empty.json()) == (200, text.json())


MESSAGES_PATH = "/v1/messages"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"name": "add", "input_schema": SCHEMA}]
QUESTION = {"role": "user", "content": "1+2?"}
TOOL_BODY: dict[str, Any] = {"model": "tiny-llada", "max_tokens": 96, "messages": [QUESTION], "tools": TOOLS}
CALL = '{"name": "add", "arguments": {"a": 1}}'
BLOCK = {"type": "tool_use", "name": "add", "input": {"a": 1}}


def joined(stream: str) -> tuple[list[dict[str, Any]], str]:
    """The blocks that a client builds of a stream, and the reason of its end."""
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    reason, is_open = "", False
    for line in stream.splitlines():
        event: dict[str, Any] = json.loads(line[6:]) if line.startswith("data: ") else {"type": ""}
        match event["type"]:
            case "content_block_start":
                assert (event["index"], is_open) == (len(blocks), False)
                is_open = True
                blocks.append(event["content_block"])
                texts.append("")
            case "content_block_delta":
                assert (event["index"], is_open) == (len(blocks) - 1, True)
                texts[-1] += event["delta"].get("text") or event["delta"]["partial_json"]
            case "content_block_stop":
                assert (event["index"], is_open) == (len(blocks) - 1, True)
                is_open = False
            case "message_delta":
                reason = event["delta"]["stop_reason"]
    for block, text in zip(blocks, texts, strict=True):
        block.update({"text": text} if block["type"] == "text" else {"input": json.loads(text)})
    return blocks, reason


async def test_a_message_has_the_calls_as_blocks_whole_and_streamed(gateway: RunningGateway) -> None:
    for answer, fields, expected, reason in (
        (CALL, {}, [BLOCK], "tool_use"),
        (f"{CALL}\n{CALL}", {}, [BLOCK, BLOCK], "tool_use"),
        (f"{CALL}\n{CALL}", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, [BLOCK], "tool_use"),
        (CALL, {"tool_choice": {"type": "tool", "name": "add"}}, [BLOCK], "tool_use"),
        (f"{CALL}\nIt is 3.", {}, [BLOCK, {"type": "text", "text": "It is 3."}], "tool_use"),
        ("It is 3.", {}, [{"type": "text", "text": "It is 3."}], "end_turn"),
        (CALL, {"tool_choice": {"type": "none"}}, [{"type": "text", "text": CALL}], "end_turn"),
    ):
        gateway.scheduler.answer = lambda _, answer=answer: answer  # type: ignore[misc]
        whole = (await gateway.http.post(MESSAGES_PATH, json={**TOOL_BODY, **fields})).json()
        streamed = await gateway.http.post(MESSAGES_PATH, json={**TOOL_BODY, **fields, "stream": True})
        for blocks, found in ((whole["content"], whole["stop_reason"]), joined(streamed.text)):
            ids = [block.pop("id") for block in blocks if block["type"] == "tool_use"]
            assert len(set(ids)) == len(ids)
            assert (blocks, found) == (expected, reason)


async def test_a_call_that_is_cut_has_its_complete_arguments(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    reply = (await gateway.http.post(MESSAGES_PATH, json={**TOOL_BODY, "max_tokens": 42})).json()
    assert (reply["content"][0]["input"], reply["stop_reason"]) == ({"a": 1}, "max_tokens")


async def test_calls_and_results_are_the_turns_of_the_chat(gateway: RunningGateway, text: TextModel) -> None:
    said = {"type": "text", "text": "Let me add."}
    found = [{"type": "text", "text": "3"}, {"type": "tool_reference", "tool_name": "sub"}]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": found}
    turns = [
        QUESTION,
        {"role": "assistant", "content": [said, {**BLOCK, "id": "c1"}]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    body = {**TOOL_BODY, "messages": turns, "max_tokens": 8, "tool_choice": {"type": "any"}}
    short = {**body, "tools": [{"name": "add", "input_schema": {}}], "max_tokens": 64}
    reply = await gateway.http.post(MESSAGES_PATH, json=short)
    assert reply.status_code == 200, reply.text
    [request] = gateway.scheduler.requests
    prompt = text.decode(unpack_int32(request.prompt_ids or b""))
    expected = f"user: 1+2?\nassistant: Let me add.\n{CALL}\nuser: Result of add: 3\nsub\nuser: And now?\nassistant: "
    assert prompt.endswith(expected)
    assert compile_pattern(request.pattern).accepts('{"name": "add", "arguments": {}}')
    assert not compile_pattern(request.pattern).accepts("Hello")
    counted = await gateway.http.post(
        f"{MESSAGES_PATH}/count_tokens", json={k: short[k] for k in ("model", "messages", "tools")}
    )
    assert counted.json() == {"input_tokens": len(request.prompt_ids or b"") // 4}


async def test_counted_tokens_are_those_of_the_tools_that_the_choice_allows(gateway: RunningGateway) -> None:
    tools = [*TOOLS, {"name": "multiply", "description": "Multiplies.", "input_schema": SCHEMA}]
    counts = set()
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "add"}, {"type": "none"}):
        body = {**TOOL_BODY, "tools": tools, "tool_choice": choice}
        sent = (await gateway.http.post(MESSAGES_PATH, json=body)).json()["usage"]["input_tokens"]
        counted = (await gateway.http.post(f"{MESSAGES_PATH}/count_tokens", json=body)).json()["input_tokens"]
        assert counted == sent, choice
        counts.add(counted)
    assert len(counts) == 3
    unknown = {**TOOL_BODY, "tool_choice": {"type": "tool", "name": "none"}}
    for path in (MESSAGES_PATH, f"{MESSAGES_PATH}/count_tokens"):
        reply = await gateway.http.post(path, json=unknown)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")


async def test_models_are_listed_as_anthropics_clients_read_them(gateway: RunningGateway) -> None:
    """As multi-llm-ts 5.1 does, which sorts them by their display names."""
    reply = await gateway.http.get("/v1/models", params={"limit": 1000}, headers=HEADERS)
    page = reply.json()
    [model] = page["data"]
    assert (model["display_name"], page["has_more"], page["first_id"], page["last_id"]) == (MODEL, False, MODEL, MODEL)
    assert datetime.fromisoformat(model["created_at"]).timestamp() == model["created"]


async def test_a_document_whose_source_is_a_text_is_read_as_text(gateway: RunningGateway) -> None:
    """As the AI SDK sends a text file."""
    source = {"type": "text", "media_type": "text/plain", "data": "29 pears"}
    document = {"type": "document", "source": source, "title": "a.txt"}
    written = {"type": "text", "text": "a.txt\n29 pears"}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "read", "input": {}}]}
    for block in (document, written):
        result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
        turns = [{"role": "user", "content": [block]}, call, {"role": "user", "content": [result]}]
        reply = await post(gateway, messages=turns)
        assert reply.status_code == 200, reply.text
    from_document, from_text = (request.prompt_ids for request in gateway.scheduler.requests)
    assert from_document == from_text
    scan = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    reply = await post(gateway, messages=[{"role": "user", "content": [scan]}])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages[0].content[0]")
