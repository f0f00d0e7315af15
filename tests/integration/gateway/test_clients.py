"""Clients made for OpenAI's servers: curl, and the bodies of `vllm bench serve` and of Open WebUI, which need torch, as
their sources build them; the client of `dilaserve bench`. `make clients` runs more clients, unchanged."""

import asyncio
import json
import shutil
from typing import Any

import pytest

from dilaserve.load.client import run_load
from dilaserve.load.workload import LoadRequest, RequestLoad
from tests.support.gateway import LIMIT_S, ONE_CELL, RunningGateway

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
    assert streamed.first_text_s is not None
    assert streamed.first_text_s > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_has_the_reason(gateway: RunningGateway, *, stream: bool) -> None:
    load = RequestLoad([LoadRequest(prompt="", output_tokens=32)], [0.0], 1.0)
    [reply] = await run_load(gateway.url, load, 5.0, lambda _: None, stream=stream)
    assert reply.error is not None
    assert reply.error.startswith("400 ")
