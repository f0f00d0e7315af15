"""Replies in the form of Anthropic's Messages API."""

import pytest
from msgspec.structs import replace

from services.gateway.api.anthropic_messages.replies import MessageReplies
from services.gateway.api.tool_calls.call_syntax import JsonCalls, TaggedCalls
from services.gateway.api.tool_calls.use import ToolUse, UsableTool
from shared.messages.requests import FinishReason, Outcome, OutcomeStatus
from tests.builders import serving_stats

STATS = serving_stats(latency_s=1.0, step_s=1.0, cached_tokens=64)
OUTCOME = Outcome(
    request_id="r", status=OutcomeStatus.COMPLETED, text="5", finish_reason=FinishReason.STOP, prompt_tokens=70,
    completion_tokens=1, stats=STATS,
)  # fmt: skip
TOOLS = ToolUse(TaggedCalls(), [UsableTool("tools[0]", "add", None, None, None)])


def test_cached_tokens_of_the_prompt_are_not_input_tokens() -> None:
    replies = MessageReplies("demo", "r", ToolUse(JsonCalls()))
    expected = {"input_tokens": 6, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 64}
    assert replies.whole([OUTCOME])["usage"] == expected
    [ending] = [each for each in replies.ending(0, OUTCOME) if each["type"] == "message_delta"]
    assert ending["usage"] == expected


def test_the_rest_of_a_call_stays_in_its_block_if_text_follows() -> None:
    replies = MessageReplies("demo", "r", TOOLS)
    replies.text(0, '<tool_call>{"name": "add", "arguments": {"a": ', (70, 10))
    events = replies.text(0, "1}}</tool_call>Done.", (70, 16))
    deltas = [(event["index"], event["delta"]["type"]) for event in events if event["type"] == "content_block_delta"]
    assert deltas == [(0, "input_json_delta"), (1, "text_delta")]


@pytest.mark.parametrize("size", [1, 1000])
def test_the_blocks_are_in_the_order_of_the_text_whole_and_streamed(size: int) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    text = f"First {call}then {call}and done."
    outcome = replace(OUTCOME, text=text)
    kinds = ["text", "tool_use", "text", "tool_use", "text"]
    assert [block["type"] for block in MessageReplies("demo", "r", TOOLS).whole([outcome])["content"]] == kinds
    replies = MessageReplies("demo", "r", TOOLS)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = [event for piece in pieces for event in replies.text(0, piece, (70, 10))] + replies.ending(0, outcome)
    begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == kinds
