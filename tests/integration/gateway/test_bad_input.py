"""Invalid requests get an error in OpenAI's format that names the wrong field."""

import json
import re
from typing import Any

import pytest

from services.gateway.api.request_body import MAX_BODY_BYTES
from tests.support.gateway import ONE_CELL, RunningGateway
from tests.support.tiny_model import MAX_LENGTH

pytestmark = ONE_CELL

USER = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"model": "tiny-llada", "messages": [USER]}
PLAIN: dict[str, Any] = {"model": "tiny-llada", "prompt": "hi"}
RESPONSE: dict[str, Any] = {"model": "tiny-llada", "input": "hi"}


async def refused(gateway: RunningGateway, path: str, *, status: int = 400, **sent: Any) -> dict[str, Any]:
    """The error object of a reply, which must be an error."""
    headers = {"Content-Type": "application/json"} if "content" in sent else {}
    reply = await gateway.http.post(path, **{"headers": headers} | sent)
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == ({"error", "type"} if path.startswith("/v1/messages") else {"error"})
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    assert "\n" not in error["message"]
    return error


def content(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


INVALID_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * MAX_LENGTH}]}, "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
    ({"messages": [USER, "hi"]}, "messages[1]"),
    (content({"type": "image_url", "image_url": {"url": "x"}}), "messages[0].content"),
    (content({"type": "text"}), "messages[0].content"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_tokens": "12"}, "max_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"response_format": {"type": "json_object", "value": {"type": "null"}, "schema": {}}}, "response_format.value"),
    ({"json_schema": "{", "min_threshold": 0.9}, "json_schema"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"threshold": 2}, "threshold"),
    ({"threshold": 0.9, "min_threshold": 0.8}, "threshold"),
    ({"gen_length": 8, "max_tokens": 8}, "gen_length"),
    ({"stop": ""}, "stop[0]"),
    ({"stop": {}}, "stop"),
    ({"stop": "x" * 1001}, "stop[0]"),
    ({"canvas": True}, "canvas"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"slo_ms": 0}, "slo_ms"),
    ({"priority": 101}, "priority"),
    ({"min_threshold": 1.5}, "min_threshold"),
    ({"block_length": 0}, "block_length"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"top_p": 1.1}, "top_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
    ({"echo": True}, "echo"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"logit_bias": {"50256": -100}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logprobs": 2}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"guided_grammar": "#" * 100_001}, "guided_grammar"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"audio": {"voice": "alloy"}}, "audio"),
    ({"model": 3}, "model"),
    ({"template": "<mask:2>", "logprobs": True}, "logprobs"),
    ({"template": "<mask:2>", "max_completion_tokens": 1}, "max_completion_tokens"),
    ({"suffix": "x"}, "suffix"),
]

INVALID_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], ["a"]]}, "prompt"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a"] * 65, "n": 2}, "n"),
    ({"prompt": [1, -1]}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [1] * MAX_LENGTH}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 0, "echo": False}, "max_tokens"),
    ({"max_tokens": 0, "echo": True, "prompt": ""}, "prompt"),
    ({"max_tokens": 0, "echo": True, "prompt": [1] * (MAX_LENGTH + 1)}, "prompt"),
    ({"max_tokens": 0, "echo": True, "stop_token_ids": [2**31 - 1]}, "stop_token_ids"),
    ({"max_completion_tokens": 8}, "max_completion_tokens"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True, "logprobs": 0}, "logprobs"),
    ({"logprobs": 21}, "logprobs"),
    ({"template": "<mask:2>", "suffix": "x"}, "suffix"),
    ({"template": "<mask:2>", "logprobs": 1}, "logprobs"),
    ({"template": "<mask:2>", "max_tokens": 0, "echo": True}, "max_tokens"),
    ({"suffix": "x", "logprobs": 0, "guided_choice": ["a"]}, "guided_choice"),
]

INVALID_INFILLS: list[tuple[dict[str, Any], str]] = [
    ({"template": "<mask:2>"}, "template"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": ""}, "prompt"),
]

INVALID_RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"name": "a"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a", "strict": True, "parameters": {"not": {}}}]},
     "tools[0].parameters"),
    ({"tool_choice": "some"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"background": True}, "background"),
    ({"include": ["unknown"]}, "include[0]"),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"stop": ["x"]}, "stop"),
    ({"input": []}, "input"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}] * 501}, "input"),
    ({"input": [{"content": "a"}]}, "input[0].role"),
    ({"input": [{"type": "function_call_output", "output": "b"}]}, "input[0].call_id"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"template": "<mask:2>"}, "template"),
]  # fmt: skip

INVALID_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}, USER]}, "messages[0].role"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
    ({"messages": [USER, {"role": "assistant", "content": "The"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "tool_reference"}]}]}]}, "messages[0].content[0].content"),
    ({"system": [{"type": "image"}]}, "system"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
     "messages[0].content"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
     "tool_choice"),
    ({"tools": [{"name": "weather"}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
    ({"stop": ["x"]}, "stop"),
    ({"n": 2}, "n"),
    ({"template": "<mask:2>"}, "template"),
]  # fmt: skip

PREDICATE = {"type": "predicate", "instructions": "hi"}
CHOICE = {"type": "choice", "instructions": "hi", "choices": [{"value": "a"}, {"value": "b"}]}
DECISION: dict[str, Any] = {"model": "tiny-llada", "input": "hi", "questions": [PREDICATE]}
INVALID_DECISIONS: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": "a" * 2000}, "input"),
    ({"questions": []}, "questions"),
    ({"questions": [PREDICATE] * 129}, "questions"),
    ({"questions": [PREDICATE | {"type": "noul"}]}, "questions[0].type"),
    ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
    ({"questions": [CHOICE | {"choices": [{"value": "a"}]}]}, "questions[0].choices"),
    ({"questions": [CHOICE | {"choices": [{"value": "a"}] * 2}]}, "questions[0].choices"),
    ({"questions": [CHOICE | {"choices": [{"value": 1}] * 2}]}, "questions[0].choices[0].value"),
    ({"questions": [PREDICATE | {"type": "score", "levels": [{"label": "a"}] * 11}]}, "questions[0].levels"),
    ({"stream": True}, "stream"),
    ({"messages": []}, "messages"),
]

APIS: dict[str, tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = {
    "chat/completions": (CHAT, INVALID_CHATS),
    "completions": (PLAIN, INVALID_COMPLETIONS),
    "fim/completions": (PLAIN, INVALID_INFILLS),
    "responses": (RESPONSE, INVALID_RESPONSES),
    "messages": (CHAT | {"max_tokens": 32}, INVALID_MESSAGES),
    "decisions": (DECISION, INVALID_DECISIONS),
}


@pytest.mark.parametrize("api", APIS)
async def test_each_field_is_checked_and_named(lonely_gateway: RunningGateway, api: str) -> None:
    valid, faults = APIS[api]
    for fault, param in faults:
        error = await refused(lonely_gateway, f"/v1/{api}", content=json.dumps(valid | fault))
        assert error["param"] == param, fault
        assert re.split(r"[.\[]", param)[0] in error["message"], fault


async def test_a_missing_field_is_named_also_after_a_byte_order_mark(lonely_gateway: RunningGateway) -> None:
    for body in (b"{}", b"\xef\xbb\xbf{}"):
        error = await refused(lonely_gateway, "/v1/chat/completions", content=body)
        assert (error["code"], error["param"]) == ("missing_required_parameter", "messages")


async def test_a_body_that_is_not_a_json_object_is_rejected(lonely_gateway: RunningGateway) -> None:
    for body in (b"nonsense", b"\xff\xfe", b"[]", b"3", b'"text"', b"[" * 100_000):
        error = await refused(lonely_gateway, "/v1/chat/completions", content=body)
        assert error["param"] is None
    for body, place in ((b"{", "line 1, column 1"), (b'{"model":\n3,}', "line 2, column 3"), (b"", "line 1, column 0")):
        error = await refused(lonely_gateway, "/v1/chat/completions", content=body)
        assert error["message"] == f"the body must be a JSON object; it is not valid JSON at {place}"
        assert (error["code"], error["param"]) == ("invalid_json", None)


async def test_a_body_over_the_limit_is_rejected_with_or_without_its_length(lonely_gateway: RunningGateway) -> None:
    async def parts() -> Any:
        for _ in range(MAX_BODY_BYTES // 65536 + 1):
            yield b" " * 65536

    await refused(lonely_gateway, "/v1/chat/completions", status=413, content=b" " * (MAX_BODY_BYTES + 1))
    await refused(lonely_gateway, "/v1/chat/completions", status=413, content=parts())


async def test_a_body_that_is_not_declared_as_json_is_refused(lonely_gateway: RunningGateway) -> None:
    for declared in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/batches"):
            sent = {"content": b"{}", "headers": {"Content-Type": declared}}
            error = await refused(lonely_gateway, path, status=415, **sent)
            assert "Content-Type: application/json" in error["message"]
    for coding in ("gzip", "br", "zstd"):
        sent = {"content": b"{}", "headers": {"Content-Type": "application/json", "Content-Encoding": coding}}
        error = await refused(lonely_gateway, "/v1/chat/completions", status=415, **sent)
        assert coding in error["message"]
    error = await refused(lonely_gateway, "/v1/files", status=415, json={})
    assert "Content-Type: multipart/form-data" in error["message"]


async def test_half_of_a_surrogate_pair_is_named(lonely_gateway: RunningGateway) -> None:
    error = await refused(lonely_gateway, "/v1/chat/completions", content=rb'{"prompt": "\\ud83d \ud83d\ude00 \ud83d"}')
    assert error["message"].endswith(r": \ud83d is half of a surrogate pair, such as a cut emoji")


async def test_the_error_names_the_field_and_what_it_must_be(lonely_gateway: RunningGateway) -> None:
    named = {"type": "function", "function": {"name": "f", "template": "x"}}
    part = {"type": "text", "text": "hi", "template": "x"}
    for path, body, param, message in (
        ("chat/completions", CHAT | {"guided_json": 5}, "guided_json", "guided_json must be a string or an object"),
        ("chat/completions", CHAT | {"structured_outputs": {"json": 5}}, "structured_outputs.json",
         "structured_outputs.json must be a string or an object"),
        ("chat/completions", CHAT | content(part), "messages[0].content[0].template", "template is not supported"),
        ("chat/completions", CHAT | {"tool_choice": named}, "tool_choice.function.template",
         "template is not supported"),
        ("chat/completions", CHAT | {"logit_bias": {"x": -100}}, "logit_bias.x",
         "logit_bias.x must be an integer"),
        ("chat/completions", CHAT | {"functions": [{"name": "f"}]}, "functions",
         "functions is not supported; accepted: []"),
        ("chat/completions", CHAT | {"presence_penalty": 2.5}, "presence_penalty",
         "presence_penalty must be at most 2"),
        ("responses", {"model": "tiny-llada", "input": [{"role": "user", "content": 5}]}, "input[0].content",
         "input[0].content must be a string or a list"),
        ("responses", {"model": "tiny-llada", "input": "hi", "metadata": {"str": 5}}, "metadata.str",
         "metadata.str must be a string"),
        ("messages", CHAT | {"max_tokens": 8, "tools": [{"type": "function", "name": "f", "input_schema": {}}]},
         "tools[0].type", "tools[0].type must be 'custom'"),
        ("chat/completions", CHAT | {"extra_body": {"guided_regex": "a"}}, "extra_body",
         "extra_body is not supported; accepted: {}"),
        ("chat/completions", {"model": "tiny-llada", "messages": None}, "messages", "messages is required"),
        ("chat/completions", CHAT | {"messages": []}, "messages", "messages must have at least 1 item"),
        ("chat/completions", CHAT | {"max_tokens": 8, "gen_length": 8}, "gen_length",
         "gen_length is another name of max_tokens; give one of them"),
    ):  # fmt: skip
        error = await refused(lonely_gateway, f"/v1/{path}", json=body)
        assert (error["param"], error["message"]) == (param, message)


async def test_unknown_paths_and_methods_get_the_same_format(lonely_gateway: RunningGateway) -> None:
    await refused(lonely_gateway, "/v1/embeddings", status=404, json={})
    unknown = await refused(lonely_gateway, "/v1/nope", status=404, json={})
    assert unknown["message"] == "the path '/v1/nope' does not exist; GET /openapi.json lists the paths"
    for other in ("/api/chat", "/v1/responses/resp_1", "/v1/chat/completions/chatcmpl-1"):
        assert (await refused(lonely_gateway, other, status=404, json={}))["code"] == "unsupported_endpoint"
    await refused(lonely_gateway, "/v1/models", status=405, json={})
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/files", "GET, POST"),
        ("PUT", "/v1/files/file-1", "GET, DELETE"),
        ("PATCH", "/v1/models/a/b", "GET"),
        ("POST", "/", "GET, HEAD"),
        ("POST", "/console/index.html", "GET, HEAD"),
    ):
        reply = await lonely_gateway.http.request(method, path)
        error = reply.json()["error"]
        assert (reply.status_code, reply.headers["allow"], error["code"]) == (405, allowed, "method_not_allowed")
        assert error["message"] == f"the path {path!r} does not support the method {method}; accepted: {allowed}"
