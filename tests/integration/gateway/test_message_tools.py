"""Tools in Anthropic's Messages API."""

import json
from typing import Any

from shared.arrays import unpack_int32
from shared.patterns.automaton import compile_pattern
from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway

pytestmark = ONE_CELL

PATH = "/v1/messages"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"name": "add", "input_schema": SCHEMA}]
QUESTION = {"role": "user", "content": "1+2?"}
BODY: dict[str, Any] = {"model": "tiny-llada", "max_tokens": 96, "messages": [QUESTION], "tools": TOOLS}
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
        whole = (await gateway.http.post(PATH, json={**BODY, **fields})).json()
        streamed = await gateway.http.post(PATH, json={**BODY, **fields, "stream": True})
        for blocks, found in ((whole["content"], whole["stop_reason"]), joined(streamed.text)):
            ids = [block.pop("id") for block in blocks if block["type"] == "tool_use"]
            assert len(set(ids)) == len(ids)
            assert (blocks, found) == (expected, reason)


async def test_a_call_that_is_cut_has_its_complete_arguments(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    reply = (await gateway.http.post(PATH, json={**BODY, "max_tokens": 42})).json()
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
    body = {**BODY, "messages": turns, "max_tokens": 8, "tool_choice": {"type": "any"}}
    short = {**body, "tools": [{"name": "add", "input_schema": {}}], "max_tokens": 64}
    reply = await gateway.http.post(PATH, json=short)
    assert reply.status_code == 200, reply.text
    [request] = gateway.scheduler.requests
    prompt = text.decode(unpack_int32(request.prompt_ids or b""))
    expected = f"user: 1+2?\nassistant: Let me add.\n{CALL}\nuser: Result of add: 3\nsub\nuser: And now?\nassistant: "
    assert prompt.endswith(expected)
    assert compile_pattern(request.pattern).accepts('{"name": "add", "arguments": {}}')
    assert not compile_pattern(request.pattern).accepts("Hello")
    counted = await gateway.http.post(
        f"{PATH}/count_tokens", json={k: short[k] for k in ("model", "messages", "tools")}
    )
    assert counted.json() == {"input_tokens": len(request.prompt_ids or b"") // 4}


async def test_counted_tokens_are_those_of_the_tools_that_the_choice_allows(gateway: RunningGateway) -> None:
    tools = [*TOOLS, {"name": "multiply", "description": "Multiplies.", "input_schema": SCHEMA}]
    counts = set()
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "add"}, {"type": "none"}):
        body = {**BODY, "tools": tools, "tool_choice": choice}
        sent = (await gateway.http.post(PATH, json=body)).json()["usage"]["input_tokens"]
        counted = (await gateway.http.post(f"{PATH}/count_tokens", json=body)).json()["input_tokens"]
        assert counted == sent, choice
        counts.add(counted)
    assert len(counts) == 3
    unknown = {**BODY, "tool_choice": {"type": "tool", "name": "none"}}
    for path in (PATH, f"{PATH}/count_tokens"):
        reply = await gateway.http.post(path, json=unknown)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")
