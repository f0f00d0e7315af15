"""OpenAI's contract for fields, limits and errors."""

from functools import partial
from typing import Any

from tests.support.gateway import CHAT, ONE_CELL, RunningGateway
from tests.support.tiny_model import MAX_LENGTH

pytestmark = ONE_CELL

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
