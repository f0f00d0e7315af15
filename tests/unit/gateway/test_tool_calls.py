"""Calls of tools in a text: how they are read, whole and piece by piece, and the patterns that allow them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.api.tool_calls.call_syntax import (
    CallSyntax,
    GemmaCalls,
    JsonCalls,
    TaggedCalls,
    call_form,
    find_call_syntax,
)
from services.gateway.api.tool_calls.call_text import Call, CallStream, NewPart, NewThought
from services.gateway.api.tool_calls.models import Message
from services.gateway.api.tool_calls.use import ToolUse, UsableTool
from shared.errors import BadInput
from shared.patterns.automaton import compile_pattern
from shared.patterns.json_containers import object_with
from shared.patterns.json_schema import choice_part, schema_part
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import FormPart

SYNTAXES: list[CallSyntax] = [TaggedCalls(), JsonCalls()]
ADD = '{"name": "add", "arguments": {"a": 1, "b": "}<"}}'
NUMBERS = schema_part({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
CALLS = call_form({"add": NUMBERS, "n.w": object_with([])})
FREE = automaton_of(TaggedCalls().form(CALLS, None, is_required=False, several=True))
FEW = '{"name": "add", "arguments": {"a": 1}}'
NOW = '{"name":"n.w","arguments":{}}'
TOOL = UsableTool("tools[0]", "add", None, None, None)
FRAGMENTS = (
    *("<tool_call>", "</tool_call>", "<tool", "</", "<", "\n", " ", "Hello", "{", "}", "[", "]", ",", '"', "\\", "1"),
    *("<|tool_call>", "<tool_call|>", "<|tool_", '<|"|>', "<|", "call:add", "call:add{", "a:", "true", "x y"),
    *('{"name"', ": ", '"add"', '"name": "add"', '"arguments"', '"arguments": {', ADD, FEW),
)


def tagged(*calls: str) -> str:
    return "".join(f"<tool_call>{call}</tool_call>" for call in calls)


def accepts(form: FormPart | str, text: str) -> bool:
    return (compile_pattern(form) if isinstance(form, str) else automaton_of(form)).accepts(text)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (tagged(ADD), "", [("add", '{"a": 1, "b": "}<"}')]),
        (f"<tool_call>\n{ADD}\n</tool_call>\n", "", [("add", '{"a": 1, "b": "}<"}')]),
        ("Let me see. " + tagged(FEW, NOW), "Let me see. ", [("add", '{"a": 1}'), ("n.w", "{}")]),
        ("\n\n" + tagged(NOW) + "  ", "", [("n.w", "{}")]),
        ("No call.", "No call.", []),
        (" \n", " \n", []),
        ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
        ('<tool_call>{"name": "add", "arguments": "1"}', '<tool_call>{"name": "add", "arguments": "1"}', []),
        ('<tool_call>{"name": "add", "arguments": {"a": 1</tool_call>' + tagged(NOW), "", [
            ("add", '{"a": 1'), ("n.w", "{}")]),
        ('<tool_call>{"name": "add", "arguments": {"a": [1, "x', "", [("add", '{"a": [1, "x')]),
        (ADD, ADD, []),
    ],
)  # fmt: skip
def test_tagged_calls_are_read_beside_text(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found = TaggedCalls().reader.read(text, is_whole=True)
    assert (found.content, found.calls) == (content, [Call(*each) for each in calls])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (ADD, "", ["add"]),
        (f" {FEW}\n{NOW}\n", "", ["add", "n.w"]),
        (f"{NOW}\nDone.", "Done.", ["n.w"]),
        (f"Here: {ADD}", f"Here: {ADD}", []),
        ('{"answer": 12}', '{"answer": 12}', []),
    ],
)
def test_lines_of_json_are_calls_at_the_beginning(text: str, content: str, calls: list[str]) -> None:
    found = JsonCalls().reader.read(text, is_whole=True)
    assert (found.content, [call.name for call in found.calls]) == (content, calls)


def gemma(*calls: str) -> str:
    return "".join(f"<|tool_call>call:{call}<tool_call|>" for call in calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (gemma('add{a:1,b:<|"|>}<"<|"|>}'), "", [("add", '{"a":1,"b":"}<\\""}')]),
        ("Let me see." + gemma("add{}", "n.w{}"), "Let me see.", [("add", "{}"), ("n.w", "{}")]),
        (gemma("add{a:[1,-2.5e3,true,None,<|\"|>ü\n<|\"|>],b:{c:{d:null}}}"), "", [
            ("add", '{"a":[1,-2.5e3,true,null,"ü\\n"],"b":{"c":{"d":null}}}')]),
        (gemma('add{<|"|>a b<|"|>:<|"|><|"|>,"c":"d\\"",e:new york}'), "", [
            ("add", '{"a b":"","c":"d\\"","e":"new york"}')]),
        ("<|tool_call>add(1)<tool_call|>", "<|tool_call>add(1)<tool_call|>", []),
        ('<|tool_call>call:add{a:<|"|>cut', "", [("add", '{"a":"cut')]),
        ("<|tool_call>call:add{a:1<tool_call|>Done.", "Done.", [("add", '{"a":1')]),
    ],
)  # fmt: skip
def test_gemmas_calls_are_read_beside_text(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found = ToolUse(GemmaCalls(), [TOOL]).read(text, True)
    assert (found.content, found.calls) == (content, [Call(*each) for each in calls])


def test_gemmas_calls_are_free_and_never_constrained() -> None:
    assert ToolUse(GemmaCalls(), [TOOL]).form(None, []) == ""
    with pytest.raises(BadInput, match="cannot be constrained; accepted: tool_choice auto") as refused:
        ToolUse(GemmaCalls(), [TOOL], is_required=True).form(None, [])
    assert refused.value.field == "tools"


@given(
    st.sampled_from([*SYNTAXES, GemmaCalls()]),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12),
    st.lists(st.integers(1, 9)),
)
def test_the_pieces_of_a_stream_join_to_the_parts_of_the_whole_text(
    syntax: CallSyntax, fragments: list[str], sizes: list[int]
) -> None:
    text = "".join(fragments)
    for several in (True, False):
        tools = ToolUse(syntax, [TOOL], several=several)
        stream, at, new = CallStream(tools.read), 0, list[NewThought | str | NewPart]()
        for size in [*sizes, len(text)]:
            new += stream.add(text[at : at + size])
            at += size
        new += stream.add("", is_last=True)
        assert _joined(new) == list(tools.read(text, True).parts)


def _joined(new: list[NewThought | str | NewPart]) -> list[str | Call]:
    """The parts of which these are pieces, in order."""
    parts = list[str | Call]()
    for piece in new:
        match parts[-1:], piece:
            case [[str() as text], str()]:
                parts[-1] = text + piece
            case [_, str()]:
                parts.append(piece)
            case [[Call() as call], NewPart(index, None, arguments)]:
                assert index == sum(isinstance(part, Call) for part in parts) - 1
                parts[-1] = Call(call.name, call.arguments + arguments)
            case [_, NewPart(index, str() as name, arguments)]:
                assert index == sum(isinstance(part, Call) for part in parts)
                parts.append(Call(name, arguments))
            case _:
                raise AssertionError(piece)
    return parts


def test_the_arguments_of_a_tool_are_never_null() -> None:
    parameters = {"type": "object", "nullable": True, "properties": {"a": {"type": "null"}}}
    tool = UsableTool("tools[0]", "add", None, parameters, None)
    assert [accepts(schema_part(tool.schema), text) for text in ("{}", "null")] == [True, False]


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_a_pattern_allows_exactly_the_calls_of_the_tools(syntax: CallSyntax) -> None:
    def joined(*calls: str) -> str:
        return tagged(*calls) if isinstance(syntax, TaggedCalls) else "\n".join(calls)

    one, some = (syntax.form(CALLS, None, is_required=True, several=several) for several in (False, True))
    for text, by_one, by_some in (
        (joined(FEW), True, True),
        (joined(NOW), True, True),
        (joined(FEW, NOW), False, True),
        (joined(FEW) + "\n", False, True),
        (joined(ADD), False, False),
        (joined(FEW.replace("add", "other")), False, False),
        (joined(FEW)[:-1], False, False),
        ("", False, False),
        ("Hello", False, False),
    ):
        assert (accepts(one, text), accepts(some, text)) == (by_one, by_some), text


def test_a_free_text_has_only_calls_of_the_tools() -> None:
    pattern, other = TaggedCalls().free_pattern(["add", "n.w"]), NOW.replace("n.w", "other")
    for text, accepted in (
        ("Häuser <tool", True),
        ("Let me see: " + tagged(ADD, NOW) + " Done.", True),
        (tagged(other), False),
        ("<tool_call>nonsense", False),
    ):
        assert accepts(pattern, text) is accepted, text


def test_a_closing_tag_ends_the_call_also_in_a_string() -> None:
    text = schema_part({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    pattern = TaggedCalls().form(call_form({"add": text}), None, is_required=True, several=False)
    for value, accepted in (
        (r"<\/tool_call>", True),
        ("a < b <b> <<", True),
        ("<", True),
        ("</tool_call>", False),
        ("a <</b>", False),
    ):
        call = f'{{"name": "add", "arguments": {{"a": "{value}"}}}}'
        assert accepts(pattern, tagged(call)) is accepted, value


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_a_pattern_can_allow_text_instead_of_calls(syntax: CallSyntax) -> None:
    free, formed = (
        syntax.form(CALLS, text, is_required=False, several=True) for text in (None, choice_part(["yes", "no"]))
    )
    call, wrong = (tagged(FEW), tagged(ADD)) if isinstance(syntax, TaggedCalls) else (FEW, ADD)
    assert [accepts(free, text) for text in ("", "Häuser < 3", call, wrong)] == [True, True, True, False]
    assert [accepts(formed, text) for text in ("yes", "Hello", call, wrong)] == [True, False, True, False]


@given(st.lists(st.sampled_from((*FRAGMENTS, tagged(FEW), tagged(NOW))), max_size=8))
def test_each_call_in_a_text_of_the_pattern_matches_its_schema(fragments: list[str]) -> None:
    text = "".join(fragments)
    if FREE.accepts(text):
        read = TaggedCalls().reader.read(text, is_whole=True)
        assert len(read.calls) == text.count("<tool_call>")
        for call in read.calls:
            assert accepts(NUMBERS, call.arguments) if call.name == "add" else call.arguments == "{}"
    else:
        assert "<tool_call>" in text


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("{% if tools %}<tools>{{ tools }}</tools> reply in <tool_call></tool_call>{% endif %}", TaggedCalls),
        ("{{ messages }}", JsonCalls),
        ("{% for tool in tools %}<|tool>{% endfor %}<|tool_call>call:f{}<tool_call|>", GemmaCalls),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}", JsonCalls),
        ("", JsonCalls),
    ],
)
def test_the_chat_template_chooses_the_syntax(template: str, kind: type[CallSyntax]) -> None:
    assert type(find_call_syntax(template)) is kind


def test_a_model_without_tools_in_its_template_reads_of_them_in_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    functions = [{"name": "add", "parameters": {"type": "object"}}]
    read, tools = JsonCalls().conversation(turns, functions)
    assert tools == []
    assert read[0]["content"].startswith("Be brief.\n\nYou can call these functions:\n" + json.dumps(functions[0]))
    assert read[2:] == [{"role": "assistant", "content": FEW}, {"role": "user", "content": "Result of add: 2"}]
    assert JsonCalls().conversation(turns[1:2], functions)[0][0]["role"] == "system"


@pytest.mark.parametrize("value", ["1" * 5000, '"\\ud800"', "[" * 900 + "]" * 900])
def test_arguments_that_cannot_be_read_stay_a_text(value: str) -> None:
    arguments = f'{{"a": {value}}}'
    call = {"id": "c1", "function": {"name": "add", "arguments": arguments}}
    message = Message.model_validate({"role": "assistant", "tool_calls": [call]})
    assert message.turn()["tool_calls"][0]["function"]["arguments"] == arguments
