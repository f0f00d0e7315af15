"""anthropic, the Python client."""

import anthropic
import pytest

QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?"
ANSWER = "The answer is 12."
MESSAGES = [{"role": "user", "content": QUESTION}]

client = anthropic.Anthropic(max_retries=0)


def test_message() -> None:
    reply = client.messages.create(model="demo-block", max_tokens=64, messages=MESSAGES)
    assert ANSWER in reply.content[0].text
    assert (reply.stop_reason, reply.type, reply.role) == ("end_turn", "message", "assistant")
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0


def test_stream() -> None:
    events = list(client.messages.create(model="demo-block", max_tokens=64, messages=MESSAGES, stream=True))
    assert ANSWER in "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert events[-1].type == "message_stop"


def test_stream_helper() -> None:
    with client.messages.stream(model="demo-block", max_tokens=64, messages=MESSAGES) as stream:
        assert ANSWER in "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 0


def test_conversation() -> None:
    blocks = [{"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]
    turns = [
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "2 + 3 = ?"},
    ]
    reply = client.messages.create(model="demo-block", max_tokens=64, system="Be short.", messages=turns)
    assert reply.content[0].text


def test_max_tokens() -> None:
    reply = client.messages.create(model="demo-block", max_tokens=5, messages=MESSAGES)
    assert (reply.usage.output_tokens, reply.stop_reason) == (5, "max_tokens")


def test_stop_sequences() -> None:
    reply = client.messages.create(model="demo-block", max_tokens=64, messages=MESSAGES, stop_sequences=[" answer"])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", " answer")


def test_count_tokens() -> None:
    counted = client.messages.count_tokens(model="demo-block", messages=MESSAGES)
    reply = client.messages.create(model="demo-block", max_tokens=8, messages=MESSAGES)
    assert counted.input_tokens == reply.usage.input_tokens


def test_slo_ms() -> None:
    reply = client.messages.create(model="demo-block", max_tokens=8, messages=MESSAGES, extra_body={"slo_ms": 9000})
    assert reply.dilaserve["slo_ms"] == 9000


def test_errors() -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="other", max_tokens=8, messages=MESSAGES)
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="top_p"):
        client.messages.create(model="demo-block", max_tokens=8, messages=MESSAGES, extra_body={"top_p": 2})


def test_tools() -> None:
    schema = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
    tools = [{"name": "calculator", "input_schema": schema}]
    first = client.messages.create(model="demo-block", max_tokens=64, messages=MESSAGES, tools=tools)
    [call] = first.content
    assert (first.stop_reason, call.name, call.input) == ("tool_use", "calculator", {"expression": "5+7"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12"}
    turns = [*MESSAGES, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(model="demo-block", max_tokens=64, messages=turns, tools=tools)
    assert ANSWER in second.content[0].text


def test_tools_stream() -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    tools, choice = [{"name": "final_result", "input_schema": schema}], {"type": "any"}
    with client.messages.stream(
        model="demo-block", max_tokens=64, messages=MESSAGES, tools=tools, tool_choice=choice
    ) as stream:
        kinds = {event.type for event in stream}
        [call] = stream.get_final_message().content
    assert "input_json" in kinds
    assert call.input == {"total": 12}
