"""The forms in which families of models call tools, and what their models read of tools and calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from services.gateway.api.tool_calls.call_text import CallReader
from shared.patterns.json_containers import COLON, COMMA
from shared.patterns.json_scalars import CHARACTER, constant, literal

Turn = Mapping[str, Any]  # a message as chat templates read it
OPENING, CLOSING = "<tool_call>", "</tool_call>"
# A JSON string of any length without `</`, which it can have as `<\/`: so a closing tag always ends the call.
STRING = f"{CHARACTER}*"
STRING_WITHOUT_TAG = r'(?:[^"\\<\x00-\x1F\x7F]|\\["\\/bfnrt]|<+(?:[^"\\</\x00-\x1F\x7F]|\\["\\/bfnrt]))*<*'
INSTRUCTION = (
    "You can call these functions:\n{functions}\n"
    'To call functions, reply with one line {{"name": "NAME", "arguments": {{...}}}} for each call and nothing else. '
    "Otherwise reply in words."
)


class CallForm(Protocol):
    """The form of a family."""

    reader: CallReader

    def conversation(self, turns: Sequence[Turn], functions: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
        """The turns and the tools for the chat template. `functions`: those that the model may call."""

    def pattern(self, calls: str, text: str | None, *, several: bool) -> str:
        """The pattern of texts with calls. `calls`: of one call. `text`: of texts without one, None: there is always a
        call; empty: any. `several`: whether there may be more than one call."""

    def free_pattern(self, names: Sequence[str]) -> str:
        """The pattern of texts whose calls are of these functions, with any arguments; empty: any text."""


class TaggedCalls(CallForm):
    """Of chat templates with Hermes' tags, as those of Qwen, SDAR, Dream and Ling: <tool_call>{...}</tool_call>."""

    reader = CallReader(OPENING, CLOSING, anywhere=True)

    def conversation(self, turns: Sequence[Turn], functions: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
        return list(turns), [{"type": "function", "function": function} for function in functions]

    def pattern(self, calls: str, text: str | None, *, several: bool) -> str:
        tagged = f"{OPENING}\n?{calls.replace(STRING, STRING_WITHOUT_TAG)}\n?{CLOSING}"
        some = f"(?:{tagged}\n?)+" if several else tagged
        if text is None:
            return some
        return f"{_without(OPENING)}(?:{some})?" if not text else f"(?:{text})|{some}"

    def free_pattern(self, names: Sequence[str]) -> str:
        text, name = _without(OPENING), "|".join(map(constant, names))
        head = rf'\{{"name"{COLON}(?:{name}){COMMA}"arguments"{COLON}\{{'
        return f"{text}(?:{OPENING}\n?{head}{text})*"


class JsonCalls(CallForm):
    """Of models whose chat template has no tools: a message of the system describes them, and a line is a call."""

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

    def pattern(self, calls: str, text: str | None, *, several: bool) -> str:
        some = f"(?:{calls}\n?)+" if several else calls
        if text is None:
            return some
        return rf"(?:[^\s{{](?s:.)*)?|{some}" if not text else f"(?:{text})|{some}"

    def free_pattern(self, names: Sequence[str]) -> str:  # noqa: ARG002
        return ""  # a text may begin as a call does


def call_form(template: str) -> CallForm:
    """The form of a chat template."""
    return TaggedCalls() if OPENING in template and "tools" in template else JsonCalls()


def call_pattern(arguments: Mapping[str, str]) -> str:
    """The pattern of one call; `arguments`: those of each function, by its name."""
    ways = (f'"name"{COLON}{constant(name)}{COMMA}"arguments"{COLON}{each}' for name, each in arguments.items())
    return rf"\{{(?:{'|'.join(ways)})\}}"


def _plain(turn: Turn, names: Mapping[str, str]) -> Turn:
    """A turn of a chat without tools."""
    if turn["role"] == "tool":
        name = names.get(turn.get("tool_call_id", ""), "the function")
        return {"role": "user", "content": f"Result of {name}: {turn['content']}"}
    called = (call["function"] for call in turn.get("tool_calls", ()))
    lines = (_json({"name": each["name"], "arguments": each["arguments"]}) for each in called)
    return {"role": turn["role"], "content": "\n".join(filter(None, (turn["content"], *lines)))}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _without(mark: str) -> str:
    """The pattern of texts without a mark, whose first character it has once."""
    first, rest = mark[0], ""
    for character in reversed(mark[1:]):
        here = literal(character)
        longer = f"|{here}{rest}" if rest else ""
        rest = f"(?:[^{first}{here}][^{first}]*{longer})?"
    return f"[^{first}]*(?:{first}{rest})*"
