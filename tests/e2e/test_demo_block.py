"""The block-causal demo model from a client's side: text, JSON, tool calls and chats, with the prefix cache."""

import json
from collections.abc import Iterator

import httpx
import pytest

from dilaserve.commands.up import DEMO_MODEL
from tests.support.stack import START_S, Stack, new_data_dir, running_stack

MODEL = DEMO_MODEL.parent / "demo-block"
PROBLEMS = [json.loads(line) for line in (MODEL / "heldout.jsonl").read_text().splitlines()][:24]
PAGE = 64  # tokens of a page of the prefix cache
TURNS = 5

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(MODEL, data_dir, "--instances", "1x1") as running:
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
    right = [f"The answer is {each['answer']}." in ask(stack, each["prompt"]) for each in PROBLEMS]
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


def test_a_schema_without_room_in_the_output_is_refused(stack: Stack) -> None:
    body = {"model": MODEL.name, "prompt": "2 + 3 =", "max_tokens": 8, "guided_regex": "(?:[a-z]#){40}"}
    reply = httpx.post(f"{stack.url}/v1/completions", json=body, timeout=START_S)
    assert reply.status_code == 400
    assert "no text of at most 8 tokens matches the pattern" in reply.json()["error"]["message"]


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
