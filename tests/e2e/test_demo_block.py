"""The block-causal demo model from a client's side: text, JSON, tool calls and chats, with the prefix cache."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema_rs
import pytest

from dilaserve.stack.up_options import DEMO_MODEL
from tests.support.services import ROOT
from tests.support.stack import START_S, Stack, new_data_dir, running_stack

MODEL = DEMO_MODEL.parent / "demo-block"
PROBLEMS = [json.loads(line) for line in (MODEL / "heldout.jsonl").read_text().splitlines()][:24]
PROFILE = ROOT / "experiments/data/cpu-demo-block.csv"  # spares the measurement
PAGE = 64  # tokens of a page of the prefix cache
TURNS = 5

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with (
        new_data_dir() as data_dir,
        running_stack(MODEL, data_dir, "--instances", "1x1", "--profile", PROFILE) as running,
    ):
        yield running


def chat(stack: Stack, messages: list[dict[str, str]], **fields: object) -> dict[str, object]:
    body = {"model": MODEL.name, "messages": messages, "max_tokens": 96, "slo_ms": 60_000, **fields}
    reply = httpx.post(f"{stack.url}/v1/chat/completions", json=body, timeout=START_S)
    assert reply.status_code == 200, reply.text
    read: dict[str, object] = reply.json()
    return read


def ask(stack: Stack, *contents: str, **fields: object) -> str:
    """The reply to a conversation, whose first message is a user's."""
    roles = ("user", "assistant")
    reply = chat(stack, [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)], **fields)
    return str(reply["choices"][0]["message"]["content"])  # type: ignore[index]


def test_most_problems_are_answered_right(stack: Stack) -> None:
    with ThreadPoolExecutor() as threads:
        replies = threads.map(lambda each: ask(stack, each["prompt"]), PROBLEMS)
    right = [f"The answer is {each['answer']}." in reply for each, reply in zip(PROBLEMS, replies, strict=True)]
    assert sum(right) >= 0.75 * len(right)


def test_an_answer_in_json_has_the_keys_that_were_asked_for(stack: Stack) -> None:
    problem = "A shop has 5 apples and buys 7 more. How many apples are there?"
    reply = ask(stack, f'{problem} Reply in JSON with the keys "steps" and "answer".')
    assert json.loads(reply) == {"steps": ["5+7=12"], "answer": 12}


def test_an_answer_matches_the_schema_that_the_request_gives(stack: Stack) -> None:
    steps = {"type": "array", "items": {"type": "string"}, "maxItems": 4}
    schema = {"type": "object", "properties": {"steps": steps, "answer": {"type": "integer"}}, "required": ["answer"]}
    for each in PROBLEMS[:8]:
        reply = json.loads(ask(stack, each["prompt"], guided_json=schema))
        assert list(reply) in (["steps", "answer"], ["answer"])
        assert isinstance(reply["answer"], int)


def calls_of(reply: dict[str, object]) -> list[tuple[str, dict[str, object]]]:
    """The names and the arguments of the calls."""
    message = reply["choices"][0]["message"]  # type: ignore[index]
    functions = [call["function"] for call in message.get("tool_calls", [])]
    return [(each["name"], json.loads(each["arguments"])) for each in functions]


def test_calls_that_are_required_match_the_schema_of_their_tool(stack: Stack) -> None:
    options = {"type": "array", "items": {"enum": ["fast", "exact"]}, "minItems": 1, "maxItems": 2}
    schemas = {
        "solve": {"type": "object", "properties": {"expression": {"type": "string", "maxLength": 12}, "how": options},
                  "required": ["expression", "how"]},
        "submit": {"type": "object", "properties": {"answer": {"type": "integer", "maximum": 99}}},
    }  # fmt: skip
    tools = [{"type": "function", "function": {"name": name, "parameters": of}} for name, of in schemas.items()]
    for each in PROBLEMS[:6]:
        messages = [{"role": "user", "content": each["prompt"]}]
        found = calls_of(chat(stack, messages, tools=tools, tool_choice="required"))
        assert found
        for name, arguments in found:
            assert jsonschema_rs.validator_for(schemas[name]).is_valid(arguments)


def test_the_result_of_a_call_leads_to_the_answer(stack: Stack) -> None:
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
    tools = [{"type": "function", "function": {"name": "calculator", "parameters": parameters}}]
    messages: list[Any] = [{"role": "user", "content": "A shop has 5 apples and buys 7 more. How many are there?"}]
    first = chat(stack, messages, tools=tools)
    assert calls_of(first) == [("calculator", {"expression": "5+7"})]
    message = first["choices"][0]["message"]  # type: ignore[index]
    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "12"}]
    second = chat(stack, messages, tools=tools)
    assert "The answer is 12." in second["choices"][0]["message"]["content"]  # type: ignore[index]


def test_a_chat_finds_its_earlier_turns_in_the_prefix_cache(stack: Stack) -> None:
    messages: list[dict[str, str]] = []
    cached = []
    for problem in PROBLEMS[:TURNS]:
        messages.append({"role": "user", "content": problem["prompt"]})
        reply = chat(stack, messages)
        usage = reply["usage"]
        assert isinstance(usage, dict)
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        messages.append(reply["choices"][0]["message"] | {"role": "assistant"})  # type: ignore[index]
    assert cached[0] == 0
    assert cached == sorted(cached)
    assert cached[-1] >= PAGE
    assert not any(tokens % PAGE for tokens in cached)
