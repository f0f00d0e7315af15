"""Replies of a model that thinks before its answer, in each API, whole and streamed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from shared.messages.requests import Request
from shared.text import TextModel
from tests.support.gateway import ONE_CELL, RunningGateway, running, settings_of
from tests.support.nats import NatsServer, new_cell
from tests.support.scheduler import AnsweringScheduler, answering
from tests.support.tiny_model import write_tiny_model

pytestmark = ONE_CELL

TEMPLATE = """
{%- for message in messages %}{{ message.role }}: {% if message.role == 'assistant' and message.reasoning_content -%}
<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}
{% endfor -%}
{%- if add_generation_prompt %}assistant: {% if opens_thought %}<think>
{% elif enable_thinking is false %}<think></think>{% endif %}{% endif -%}
"""
THOUGHT, ANSWER = "12 and 17.", "29 pears."
TEXT = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
QUESTION = {"role": "user", "content": "How many pears?"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """One whose replies are TEXT, but for the opening mark if the prompt has it."""
    directory: Path = write_tiny_model(tmp_path_factory.mktemp("models") / "thinking")
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = TEMPLATE
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    text = TextModel(directory, "thinking")

    def answer(request: Request) -> str:
        is_open = text.decode(text.encode_request(request)).endswith("<think>\n")
        return TEXT.removeprefix("<think>\n") if is_open else TEXT

    async with (
        new_cell(nats_server) as bus,
        answering(AnsweringScheduler(bus, text, answer=answer)) as scheduler,
        running(settings_of(bus, directory), text) as gateway,
    ):
        await gateway.until("ready")
        gateway.scheduler = scheduler
        yield gateway


async def events(gateway: RunningGateway, path: str, **fields: Any) -> list[dict[str, Any]]:
    reply = await gateway.http.post(f"/v1/{path}", json=fields | {"stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def whole(gateway: RunningGateway, path: str, **fields: Any) -> dict[str, Any]:
    reply = await gateway.http.post(f"/v1/{path}", json=fields)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def prompt_of(gateway: RunningGateway) -> str:
    text = gateway.scheduler.text
    return text.decode(text.encode_request(gateway.scheduler.requests[-1]), with_special=True)


@pytest.mark.parametrize("options", [{}, {"opens_thought": True}])
async def test_a_chats_message_has_the_thought_beside_its_content(
    gateway: RunningGateway, options: dict[str, bool]
) -> None:
    body: dict[str, Any] = {"messages": [QUESTION], "chat_template_kwargs": options}
    reply = await whole(gateway, "chat/completions", **body)
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, ANSWER)
    deltas = [chunk["choices"][0]["delta"] for chunk in await events(gateway, "chat/completions", **body)]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == THOUGHT
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER


async def test_the_thought_of_an_earlier_reply_is_in_the_prompt(gateway: RunningGateway) -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}, {"type": "text", "text": ANSWER}]
    for fields in ({"reasoning_content": THOUGHT}, {"reasoning": THOUGHT}, {"content": parts}):
        earlier = {"role": "assistant", "content": ANSWER, **fields}
        await whole(gateway, "chat/completions", messages=[QUESTION, earlier, QUESTION])
        assert f"<think>{THOUGHT}</think>{ANSWER}" in prompt_of(gateway)


async def test_a_text_with_a_form_of_the_client_comes_whole(gateway: RunningGateway) -> None:
    body = {"messages": [QUESTION], "guided_regex": r"<think>[\s\S]*</think>[\s\S]*"}
    [choice] = (await whole(gateway, "chat/completions", **body))["choices"]
    assert choice["message"]["content"] == TEXT
    assert "reasoning_content" not in choice["message"]


async def test_a_response_has_the_thought_as_its_first_item(gateway: RunningGateway) -> None:
    reply = await whole(gateway, "responses", input="How many pears?")
    thought, message = reply["output"]
    assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": THOUGHT}])
    assert message["content"][0]["text"] == ANSWER
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == len(THOUGHT)
    sent = await events(gateway, "responses", input="How many pears?")
    kinds = list(dict.fromkeys(event["type"] for event in sent))
    assert kinds[2:] == [
        "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
        "response.output_text.delta", "response.reasoning_text.done", "response.content_part.done",
        "response.output_item.done", "response.output_text.done", "response.completed",
    ]  # fmt: skip
    for kind, expected, at in (("reasoning_text", THOUGHT, 0), ("output_text", ANSWER, 1)):
        deltas = [event for event in sent if event["type"] == f"response.{kind}.delta"]
        assert "".join(event["delta"] for event in deltas) == expected
        assert {event["output_index"] for event in deltas} == {at}
    assert [item["type"] for item in sent[-1]["response"]["output"]] == ["reasoning", "message"]


async def test_references_to_thoughts_are_left_out_and_those_to_messages_read(gateway: RunningGateway) -> None:
    reply = await whole(gateway, "responses", input="How many pears?")
    references = [{"type": "item_reference", "id": item["id"]} for item in reply["output"]]
    await whole(gateway, "responses", input=[QUESTION, *references, QUESTION])
    assert f"assistant: {ANSWER}\n" in prompt_of(gateway)


@pytest.mark.parametrize(
    ("thinking", "begins", "kinds"),
    [
        (None, "", ["text"]),
        ({"type": "disabled"}, "<think></think>", ["text"]),
        ({"type": "enabled", "budget_tokens": 1024}, "", ["thinking", "text"]),
        ({"type": "adaptive", "display": "omitted"}, "", ["text"]),
    ],
)
async def test_a_message_has_the_thought_if_the_client_wants_it(
    gateway: RunningGateway, thinking: dict[str, Any] | None, begins: str, kinds: list[str]
) -> None:
    body: dict[str, Any] = {"messages": [QUESTION], "max_tokens": 64, "thinking": thinking}
    blocks = (await whole(gateway, "messages", **body))["content"]
    assert prompt_of(gateway).endswith(f"assistant: {begins}")
    assert [block["type"] for block in blocks] == kinds
    assert [block[block["type"]] for block in blocks] == [THOUGHT, ANSWER][-len(kinds) :]
    sent = await events(gateway, "messages", **body)
    begun = [event["content_block"]["type"] for event in sent if event["type"] == "content_block_start"]
    assert begun == kinds
    for at, kind in enumerate(kinds):
        deltas = [
            event["delta"][kind] for event in sent if event["type"] == "content_block_delta" and event["index"] == at
        ]
        assert "".join(deltas) == blocks[at][kind]


async def test_counted_tokens_are_those_of_the_message(gateway: RunningGateway) -> None:
    body: dict[str, Any] = {"messages": [QUESTION], "thinking": {"type": "disabled"}}
    message = await whole(gateway, "messages", **body, max_tokens=64)
    assert await whole(gateway, "messages/count_tokens", **body) == {"input_tokens": message["usage"]["input_tokens"]}
