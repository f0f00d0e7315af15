"""The syntaxes in which families of models call tools, and how their prompts show tools and calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from services.gateway.api.tool_calls.call_text import CallReader
from shared.patterns.json_containers import COLON, COMMA
from shared.patterns.json_scalars import CHARACTER, constant, literal

Turn = Mapping[str, Any]  # a message as chat templates take it
OPENING, CLOSING = "<tool_call>", "</tool_call>"
# A JSON string without `</`, which may be escaped as `<\/`: so a closing tag always ends the call.
STRING = f"{CHARACTER}*"
STRING_WITHOUT_TAG = r'(?:[^"\\<\x00-\x1F\x7F]|\\["\\/bfnrt]|<+(?:[^"\\</\x00-\x1F\x7F]|\\["\\/bfnrt]))*<*'
INSTRUCTION = (
    "You can call these functions:\n{functions}\n"
    'To call functions, reply with one line {{"name": "NAME", "arguments": {{...}}}} for each call and nothing else. '
    "Otherwise reply in words."
)


class CallSyntax(Protocol):
    """How a family of models writes calls of tools."""

    reader: CallReader

    def conversation(self, turns: Sequence[Turn], functions: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
        """The turns and the tools that the chat template gets. `functions`: those that the model may call."""

    def pattern(self, call_pattern: str, text_pattern: str | None, *, several: bool) -> str:
        """The pattern of whole texts.

        `call_pattern`: that of one call. `text_pattern`: that of texts without a call; empty: any text; None: each text
        has a call. `several`: a text may have more than one call.
        """

    def free_pattern(self, names: Sequence[str]) -> str:
        """The pattern of texts that may call these functions with any arguments; empty: any text."""


class TaggedCalls(CallSyntax):
    """<tool_call>{...}</tool_call>, as the chat templates of Hermes, Qwen, SDAR, Dream and Ling have it."""

    reader = CallReader(OPENING, CLOSING, anywhere=True)

    def conversation(self, turns: Sequence[Turn], functions: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
        return list(turns), [{"type": "function", "function": function} for function in functions]

    def pattern(self, call_pattern: str, text_pattern: str | None, *, several: bool) -> str:
        call = f"{OPENING}\n?{call_pattern.replace(STRING, STRING_WITHOUT_TAG)}\n?{CLOSING}"
        calls = f"(?:{call}\n?)+" if several else call
        if text_pattern is None:
            return calls
        return f"(?:{text_pattern})|{calls}" if text_pattern else f"{_without(OPENING)}(?:{calls})?"

    def free_pattern(self, names: Sequence[str]) -> str:
        text, name = _without(OPENING), "|".join(map(constant, names))
        head = rf'\{{"name"{COLON}(?:{name}){COMMA}"arguments"{COLON}\{{'
        return f"{text}(?:{OPENING}\n?{head}{text})*"


class JsonCalls(CallSyntax):
    """A line of JSON is a call. For chat templates without tools: the system message describes the tools."""

    reader = CallReader("", "", anywhere=False)

    def conversation(self, turns: Sequence[Turn], functions: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
        names = {call["id"]: call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())}
        plain = [_plain(turn, names) for turn in turns]
        if not functions:
            return plain, []
        system = INSTRUCTION.format(functions="\n".join(map(_json, functions)))
        if plain[0]["role"] == "system":
            return [{"role": "system", "content": f"{plain[0]['content']}\n\n{system}"}, *plain[1:]], []
        return [{"role": "system", "content": system}, *plain], []

    def pattern(self, call_pattern: str, text_pattern: str | None, *, several: bool) -> str:
        calls = f"(?:{call_pattern}\n?)+" if several else call_pattern
        if text_pattern is None:
            return calls
        return f"(?:{text_pattern})|{calls}" if text_pattern else rf"(?:[^\s{{](?s:.)*)?|{calls}"

    def free_pattern(self, names: Sequence[str]) -> str:  # noqa: ARG002
        return ""  # a text may begin as a call does


def find_call_syntax(template: str) -> CallSyntax:
    """The call syntax of a chat template."""
    return TaggedCalls() if OPENING in template and "tools" in template else JsonCalls()


def call_pattern(arguments: Mapping[str, str]) -> str:
    """The pattern of one call. `arguments`: the pattern of each function's arguments, by the function's name."""
    ways = (f'"name"{COLON}{constant(name)}{COMMA}"arguments"{COLON}{each}' for name, each in arguments.items())
    return rf"\{{(?:{'|'.join(ways)})\}}"


def _plain(turn: Turn, names: Mapping[str, str]) -> Turn:
    """The same turn for a chat template without tools."""
    if turn["role"] == "tool":
        name = names.get(turn.get("tool_call_id", ""), "the function")
        return {"role": "user", "content": f"Result of {name}: {turn['content']}"}
    called = (call["function"] for call in turn.get("tool_calls", ()))
    lines = (_json({"name": each["name"], "arguments": each["arguments"]}) for each in called)
    return {"role": turn["role"], "content": "\n".join(filter(None, (turn["content"], *lines)))}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _without(mark: str) -> str:
    """The pattern of texts that do not contain `mark`. The first character of `mark` occurs once in it."""
    first, rest = mark[0], ""
    for character in reversed(mark[1:]):
        here = literal(character)
        longer = f"|{here}{rest}" if rest else ""
        rest = f"(?:[^{first}{here}][^{first}]*{longer})?"
    return f"[^{first}]*(?:{first}{rest})*"
