"""Thoughts before an answer: how they are split from it, whole and piece by piece."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.api.thoughts import KINDS, ThoughtMarks
from services.gateway.api.tool_calls.call_syntax import GemmaCalls, TaggedCalls
from services.gateway.api.tool_calls.call_text import Call, CallStream, NewThought
from services.gateway.api.tool_calls.use import ToolUse, UsableTool

GEMMA, TAGS = KINDS
OPENED = replace(TAGS, is_open=True)  # by the prompt
TOOL = UsableTool("tools[0]", "add", None, None, None)
PIECES = ["<think>", "</think>", "<thi", "</", "<|channel>", "<channel|>", "thought\n", "though", "a", " ", "\n\n"]


@pytest.mark.parametrize(
    ("thoughts", "text", "split"),
    [
        (TAGS, "<think>\nHm.\n</think>\n\nYes.", ("Hm.", "Yes.")),
        (TAGS, "\n<think>\n\n</think>\n\nYes.", ("", "Yes.")),
        (TAGS, "<think>\nHm, so", ("Hm, so", "")),
        (TAGS, " Yes, <think> is a tag.</think>", ("", " Yes, <think> is a tag.</think>")),
        (TAGS, "<th", ("", "<th")),
        (OPENED, "Hm.\n</think>\n\nYes.", ("Hm.", "Yes.")),
        (OPENED, "Hm.</think", ("Hm.</think", "")),
        (GEMMA, "<|channel>thought\nHm.<channel|>Yes.", ("Hm.", "Yes.")),
        (GEMMA, "<|channel>thought\n<channel|>Yes, <|channel>thought\nor?<channel|>no.", ("", "Yes, no.")),
        (GEMMA, "Yes.<|channel>thought\nHm, so", ("", "Yes.")),
    ],
)
def test_a_thought_at_the_beginning_is_split_from_the_answer(
    thoughts: ThoughtMarks, text: str, split: tuple[str, str]
) -> None:
    assert thoughts.split(text, is_whole=True) == split


@given(st.sampled_from([GEMMA, TAGS, OPENED]), st.lists(st.sampled_from(PIECES)).map("".join), st.data())
def test_the_split_of_a_part_begins_the_split_of_the_whole(
    thoughts: ThoughtMarks, text: str, data: st.DataObject
) -> None:
    part = text[: data.draw(st.integers(0, len(text)))]
    (thought, answer), whole = thoughts.split(part, is_whole=False), thoughts.split(text, is_whole=True)
    assert whole[0].startswith(thought)
    assert whole[1].startswith(answer)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_stream_of_a_text_has_its_thought_then_its_call(size: int) -> None:
    text = '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    tools = ToolUse(TaggedCalls(), [TOOL], thoughts=TAGS)
    whole = tools.read(text, True)
    assert (whole.thought, whole.parts) == ("I add.", (Call("add", '{"a": 1}'),))
    stream = CallStream(tools.read)
    new = [each for at in range(0, len(text), size) for each in stream.add(text[at : at + size])]
    new += stream.add("", is_last=True)
    assert "".join(each.text for each in new if isinstance(each, NewThought)) == "I add."
    kinds = [isinstance(each, NewThought) for each in new]
    assert kinds == sorted(kinds, reverse=True)
    assert not any(isinstance(each, str) for each in new)


def test_a_call_may_follow_a_thought_of_gemma() -> None:
    tools = ToolUse(GemmaCalls(), [TOOL], thoughts=GEMMA)
    read = tools.read("<|channel>thought\nHm.<channel|>Yes.<|tool_call>call:add{}<tool_call|>", True)
    assert (read.thought, read.content, read.calls) == ("Hm.", "Yes.", [Call("add", "{}")])
