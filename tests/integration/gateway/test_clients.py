"""Clients made for OpenAI's servers, and OpenAI's contract for fields, limits and errors.

These are curl, the bodies of `vllm bench serve` and of Open WebUI, which need torch, as their sources build them, and
the client of `dilaserve bench`. `make clients` runs more clients, unchanged.
"""

import asyncio
import json
import shutil
from functools import partial
from typing import Any

import pytest

from dilaserve.load.client import run_load
from dilaserve.load.workload import LoadRequest, RequestLoad
from tests.support.gateway import CHAT, LIMIT_S, ONE_CELL, RunningGateway
from tests.support.present import present
from tests.support.tiny_model import MAX_LENGTH

pytestmark = ONE_CELL

QUESTION = {"role": "user", "content": "How many pears?"}
CLOCK = {
    "name": "get_current_timestamp",
    "description": "The current time.",
    "parameters": {"properties": {}, "type": "object"},
}
BODY = '{"model": "tiny-llada", "messages": [{"role": "user", "content": "How many pears?"}]%s}'


async def output_of(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
async def test_curl_gets_a_reply_and_a_stream(gateway: RunningGateway) -> None:
    url, header = f"{gateway.url}/v1/chat/completions", "Content-Type: application/json"
    whole = json.loads(await output_of("curl", "-sf", url, "-H", header, "-d", BODY % ""))
    assert whole["choices"][0]["message"]["content"] == "The answer is 29."
    stream = await output_of("curl", "-sfN", url, "-H", header, "-d", BODY % ', "stream": true')
    *chunks, done = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    assert done == "[DONE]"
    pieces = [json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == "The answer is 29."


@pytest.mark.parametrize(
    "base", ["", "/v1", "/v1/v1", "//v1", "/api/v1", "/openai/v1", "/openai/deployments/tiny-llada"]
)
async def test_paths_that_clients_make_of_a_base_url_are_served(gateway: RunningGateway, base: str) -> None:
    body = {"model": "tiny-llada", "messages": [QUESTION], "max_tokens": 32}
    for path in ("chat/completions", "chat/completions?api-version=2024-10-21", "messages", "messages/", "responses/"):
        sent = {"model": "tiny-llada", "input": "How many pears?"} if path == "responses/" else body
        reply = await gateway.http.post(f"{gateway.url}{base}/{path}", json=sent)
        assert reply.status_code == 200, path
        assert "The answer is 29." in reply.text
    for path in ("models", "models/", "models/tiny-llada"):
        listed, head = [await gateway.http.request(method, f"{gateway.url}{base}/{path}") for method in ("GET", "HEAD")]
        assert (listed.status_code, head.status_code, head.content) == (200, 200, b"")
    error = (await gateway.http.post(f"{gateway.url}{base}/messages", json={})).json()
    assert error["type"] == "error"  # Anthropic's form


async def test_the_request_of_vllm_bench_gets_a_stream_with_usage(gateway: RunningGateway) -> None:
    # The fields of `vllm bench serve --ignore-eos`: vllm/benchmarks/lib/endpoint_request_func.py
    body = {"model": "tiny-llada", "prompt": "How many pears?", "repetition_penalty": 1.0, "max_tokens": 32}
    body |= {"logprobs": None, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    chunks = await gateway.events("/v1/completions", body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1])
    assert chunks[-1]["usage"]["completion_tokens"] > 0


# The bodies of Open WebUI 0.12.4 for an OpenAI-compatible connection: `generate_chat_completion` of
# open_webui/routers/openai.py sends what main.py and utils/middleware.py leave of the page's body, and the tasks of
# routers/tasks.py. With the capability `usage` of a model a stream has `stream_options`; with built-in tools a chat
# has `tools`; the parameters of a chat's or a model's settings are fields of the body.
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "max_tokens": 64}
PENALTIES = {"frequency_penalty": 0.0, "presence_penalty": 0.0}
OPEN_WEBUI_CHATS: list[dict[str, Any]] = [
    {"stream": True, "messages": [QUESTION]},
    {"stream": True, "messages": [QUESTION], "stream_options": {"include_usage": True}},
    {"stream": True, "messages": [QUESTION], "tools": [{"type": "function", "function": CLOCK}]},
    {
        "stream": True,
        "messages": [
            {"role": "system", "content": "Be short."},
            *(QUESTION, {"role": "assistant", "content": "29"}),
            {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
        ],
        "stop": ["\n\n"],
        **SAMPLING,
        **PENALTIES,
    },
]


@pytest.mark.parametrize("body", OPEN_WEBUI_CHATS)
async def test_the_chats_of_open_webui_get_a_stream(gateway: RunningGateway, body: dict[str, Any]) -> None:
    listed = (await gateway.http.get("/v1/models")).json()["data"]  # its list of models
    reply = await gateway.http.post("/v1/chat/completions", json={"model": listed[0]["id"], **body})
    assert reply.status_code == 200, reply.text
    assert "x-dilaserve-ignored" not in reply.headers
    *chunks, done = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    sent = [json.loads(chunk) for chunk in chunks]
    assert done == "[DONE]"
    deltas = [choice["delta"].get("content") or "" for chunk in sent for choice in chunk["choices"]]
    assert "".join(deltas) == "The answer is 29."
    assert bool(sent[-1].get("usage")) == ("stream_options" in body)


@pytest.mark.parametrize("raw", [False, True])
async def test_a_streamed_reply_has_the_same_figures_and_its_first_text(gateway: RunningGateway, *, raw: bool) -> None:
    load = RequestLoad([LoadRequest(prompt="How many pears?", output_tokens=32, raw=raw)], [0.0], 1.0)
    [whole] = await run_load(gateway.url, load, 5.0, lambda _: None)
    [streamed] = await run_load(gateway.url, load, 5.0, lambda _: None, stream=True)
    assert (whole.error, streamed.error, whole.first_text_s) == (None, None, None)
    assert (streamed.text, streamed.text_tokens, streamed.steps) == (whole.text, whole.text_tokens, whole.steps)
    assert streamed.text_tokens > 0
    assert present(streamed.first_text_s) > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_has_the_reason(gateway: RunningGateway, *, stream: bool) -> None:
    load = RequestLoad([LoadRequest(prompt="", output_tokens=32)], [0.0], 1.0)
    [reply] = await run_load(gateway.url, load, 5.0, lambda _: None, stream=stream)
    assert present(reply.error).startswith("400 ")


PLAIN: dict[str, Any] = {"model": "tiny-llada", "prompt": "How many pears?"}


async def test_max_tokens_cuts_the_text_and_the_stream(gateway: RunningGateway) -> None:
    gateway.scheduler.answer = lambda _: "abcdefgh"
    for limit, text, reason in ((5, "abcde", "length"), (8, "abcdefgh", "length"), (64, "abcdefgh", "stop")):
        body = {**PLAIN, "max_tokens": limit}
        reply = (await gateway.http.post("/v1/completions", json=body)).json()
        [choice] = reply["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text, reason)
        assert reply["usage"]["completion_tokens"] == len(text)
        chunks = await gateway.events("/v1/completions", body)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
        assert chunks[-1]["choices"][0]["finish_reason"] == reason


async def test_a_limit_beyond_the_models_room_is_cut_and_named(gateway: RunningGateway) -> None:
    for name, limit in (("max_completion_tokens", 10**9), ("max_completion_tokens", -1), ("max_tokens", -1)):
        reply = await gateway.http.post("/v1/chat/completions", json={**CHAT, name: limit})
        output_tokens = reply.json()["dilaserve"]["output_tokens"]
        assert reply.headers["x-dilaserve-adjusted"] == f"{name}={output_tokens}"
        assert MAX_LENGTH - 32 < output_tokens + reply.json()["usage"]["prompt_tokens"] <= MAX_LENGTH
    fits = await gateway.http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 7})
    assert "x-dilaserve-adjusted" not in fits.headers


async def test_a_limit_that_only_a_later_prompt_has_no_room_for_is_named(gateway: RunningGateway) -> None:
    body = {**PLAIN, "max_tokens": 128}
    short = await gateway.http.post("/v1/completions", json=body)
    assert "x-dilaserve-adjusted" not in short.headers
    prompts = [PLAIN["prompt"], "x" * (MAX_LENGTH - 40), "x" * (MAX_LENGTH - 70)]
    for stream in (False, True):
        reply = await gateway.http.post("/v1/completions", json={**body, "prompt": prompts, "stream": stream})
        assert (reply.status_code, reply.headers["x-dilaserve-adjusted"]) == (200, "max_tokens=32")


async def test_fields_without_effect_on_the_answer_are_ignored_and_named(gateway: RunningGateway) -> None:
    reply = {"role": "assistant", "content": "29", "reasoning_content": "x", "name": "me", "tool_calls": []}
    body = {
        **CHAT, "messages": [*CHAT["messages"], reply, *CHAT["messages"]], "metadata": {"a": "b"}, "store": True,
        "reasoning_effort": "high", "prompt_cache_key": None, "repetition_penalty": 1.0, "top_k": -1, "tools": [],
        "x\r\nSet-Cookie: a": 1, "no\u00e4such": 1,
    }  # fmt: skip
    answered = await gateway.http.post("/v1/chat/completions", json=body)
    assert answered.status_code == 200
    named = answered.headers["x-dilaserve-ignored"].split(", ")
    assert sorted(named) == [
        *("messages[1].name", "messages[1].reasoning_content", "metadata", "no?such", "reasoning_effort", "store"),
        "x??Set-Cookie??a",
    ]
    assert "set-cookie" not in answered.headers
    plain = await gateway.http.post("/v1/chat/completions", json=CHAT)
    assert "x-dilaserve-ignored" not in plain.headers


async def test_a_long_prompt_has_openais_code(gateway: RunningGateway) -> None:
    refused = await gateway.http.post("/v1/completions", json={**PLAIN, "prompt": "x" * MAX_LENGTH})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    message = refused.json()["error"]["message"]  # Claude Code and pi look for the first words, LangChain for the last
    assert "prompt is too long" in message
    assert "maximum context length" in message


async def test_a_text_survives_tokenizing_and_detokenizing(gateway: RunningGateway) -> None:
    text = "Wie viele \u00c4pfel?"
    listed = (await gateway.http.post("/tokenize", json={"model": "tiny-llada", "prompt": text})).json()
    assert (listed["count"], listed["max_model_len"]) == (len(listed["tokens"]), MAX_LENGTH)
    back = await gateway.http.post("/detokenize", json={"model": "tiny-llada", "tokens": listed["tokens"]})
    assert back.json() == {"prompt": text}
    ids = (await gateway.http.post("/tokenize", json={"model": "tiny-llada", "prompt": "a<|eot_id|>"})).json()["tokens"]
    asked = {"model": "tiny-llada", "tokens": ids}
    for skips, expected in ((None, "a"), (True, "a"), (False, "a<|eot_id|>")):
        body = asked if skips is None else asked | {"skip_special_tokens": skips}
        assert (await gateway.http.post("/detokenize", json=body)).json() == {"prompt": expected}
    chat = (await gateway.http.post("/tokenize", json=CHAT)).json()
    reply = await gateway.http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})
    assert reply.json()["usage"]["prompt_tokens"] == chat["count"]


async def test_a_control_token_in_a_message_is_text_and_in_a_prompt_itself(gateway: RunningGateway) -> None:
    ask = partial(gateway.http.post, "/tokenize")
    chat = (await ask(json={"model": "tiny-llada", "messages": [{"role": "user", "content": "<|eot_id|>"}]})).json()
    prompt = (await ask(json={"model": "tiny-llada", "prompt": "<|eot_id|>"})).json()
    [end] = prompt["tokens"]
    assert end not in chat["tokens"]
    assert chat["count"] == len("user: <|eot_id|>\nassistant: ")


async def test_the_tokenizer_leaves_out_the_beginning_of_a_reply(gateway: RunningGateway) -> None:
    closed, opened, usual = [
        (await gateway.http.post("/tokenize", json=CHAT | fields)).json()["tokens"]
        for fields in ({"add_generation_prompt": False}, {"add_generation_prompt": True}, {})
    ]
    assert opened == usual
    assert len(closed) < len(opened)
    assert opened[: len(closed)] == closed


async def test_the_tokenizer_names_ignored_fields(gateway: RunningGateway) -> None:
    named = {"model": "tiny-llada", "session_id": "x"}
    for path, body in (
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [65]}),
        ("/v1/messages/count_tokens", {"messages": CHAT["messages"]}),
    ):
        reply = await gateway.http.post(path, json=named | body)
        assert (reply.status_code, reply.headers["x-dilaserve-ignored"]) == (200, "session_id"), path
        assert "x-dilaserve-ignored" not in (await gateway.http.post(path, json=body | {"model": "tiny-llada"})).headers


async def test_a_long_list_of_tokens_becomes_a_text(gateway: RunningGateway) -> None:
    reply = await gateway.http.post("/detokenize", json={"model": "tiny-llada", "tokens": [65] * 100_000})
    assert len(reply.json()["prompt"]) == 100_000


async def test_invalid_bodies_of_the_tokenizer_are_refused_by_name(gateway: RunningGateway) -> None:
    for path, body, param in (
        ("/tokenize", {"model": "tiny-llada"}, "prompt"),
        ("/tokenize", {**CHAT, "prompt": "x"}, "prompt"),
        ("/tokenize", {"model": "tiny-llada", "prompt": ""}, "prompt"),
        ("/tokenize", {"model": "other", "prompt": "x"}, "model"),
        ("/tokenize", {**CHAT, "return_token_strs": True}, "return_token_strs"),
        ("/tokenize", {**CHAT, "continue_final_message": True}, "continue_final_message"),
        ("/detokenize", {"model": "tiny-llada", "tokens": [10**9]}, "tokens"),
        ("/detokenize", {"model": "tiny-llada", "tokens": [10**9] * 10_000}, "tokens"),
        ("/detokenize", {"model": "tiny-llada", "tokens": ["x"]}, "tokens[0]"),
    ):
        refused = await gateway.http.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) in ((400, param), (404, param)), body
