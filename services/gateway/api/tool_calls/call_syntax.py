"""The syntaxes in which families of models call tools, and how their prompts show tools and calls."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from services.gateway.api.prompts import Turn
from services.gateway.api.tool_calls.call_text import SPACE, CallReader, gemma_arguments
from shared.errors import BadInput
from shared.patterns.byte_automaton import product
from shared.patterns.json_containers import COMMA, member
from shared.patterns.json_strings import constant
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import (
    NOTHING,
    Alternatives,
    Compiled,
    FormPart,
    JoinedParts,
    Literal,
    Looped,
    RepeatedPart,
    either,
)
from shared.patterns.regex import read_regex

OPENING, CLOSING = "<tool_call>", "</tool_call>"
GEMMA_OPENING, GEMMA_CLOSING = "<|tool_call>", "<tool_call|>"
NEWLINE = RepeatedPart(Literal("\n"), 0, 1)
WITHOUT_CLOSING = r"(?:[^<]|<+[^</])*<*"  # texts without `</`, so that a closing tag always ends the call
INSTRUCTION = (
    "You can call these functions:\n{functions}\n"
    'To call functions, reply with one line {{"name": "NAME", "arguments": {{...}}}} for each call and nothing else. '
    "Otherwise reply in words."
)


class CallSyntax(Protocol):
    """How a family of models writes calls of tools, by default with a chat template that describes tools."""

    reader: CallReader
    about: str  # for an operator, in a few words

    def conversation(self, turns: Sequence[Turn], functions: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
        """The turns and the tools that the chat template gets. `functions`: those that the model may call."""
        return list(turns), [{"type": "function", "function": function} for function in functions]

    def form(self, call: FormPart, text: FormPart | None, *, is_required: bool, several: bool) -> FormPart:  # noqa: ARG002
        """The form of whole texts.

        `call`: that of one call. `text`: that of texts without a call; None: any text. `is_required`: each text has a
        call. `several`: a text may have more than one call. Raises: BadInput.
        """
        raise BadInput(
            "the model's syntax of calls cannot be constrained; accepted: tool_choice auto, without strict", "tools"
        )

    def free_pattern(self, names: Sequence[str]) -> str:  # noqa: ARG002
        """The pattern of texts that may call these functions with any arguments; empty: any text."""
        return ""


class TaggedCalls(CallSyntax):
    """<tool_call>{...}</tool_call>, as the chat templates of Hermes, Qwen, SDAR, Dream and Ling have it."""

    reader = CallReader(OPENING, CLOSING, anywhere=True)
    about = f"calls between {OPENING} and {CLOSING}, as the chat template has them"

    def form(self, call: FormPart, text: FormPart | None, *, is_required: bool, several: bool) -> FormPart:
        tagged = product(automaton_of(call), automaton_of(read_regex(WITHOUT_CLOSING)))
        if tagged is None:
            raise BadInput("no arguments without </ are valid", "tools")
        whole = JoinedParts((Literal(OPENING), NEWLINE, Compiled(tagged), NEWLINE, Literal(CLOSING)))
        calls = _calls(whole, several=several)
        if is_required:
            return calls
        if text:
            return Alternatives((text, calls))
        return JoinedParts((read_regex(_without(OPENING)), RepeatedPart(calls, 0, 1)))

    def free_pattern(self, names: Sequence[str]) -> str:
        text, name = _without(OPENING), "|".join(map(re.escape, names))
        head = rf'\{{"name":[ ]?"(?:{name})",[ ]?"arguments":[ ]?\{{'
        return f"{text}(?:{OPENING}\n?{head}{text})*"


class GemmaCalls(CallSyntax):
    """<|tool_call>call:NAME{...}<tool_call|>, as Gemma 4 writes calls. The marks are special tokens, which no form can
    have, so calls are not constrained."""

    about = f"calls between {GEMMA_OPENING} and {GEMMA_CLOSING}, without constraints on their arguments"
    reader = CallReader(
        GEMMA_OPENING,
        GEMMA_CLOSING,
        anywhere=True,
        pieces=(SPACE, *"call:", SPACE, r"([\w.-]+)", SPACE, r"\{"),
        arguments=gemma_arguments,
    )


class JsonCalls(CallSyntax):
    """A line of JSON is a call. For chat templates without tools: the system message describes the tools. Any text may
    begin as a call does, so free calls have no pattern."""

    reader = CallReader("", "", anywhere=False)
    about = "the chat template has none, so a system message describes them, and calls are lines of JSON"

    def conversation(self, turns: Sequence[Turn], functions: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
        names = {call["id"]: call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())}
        plain = [_plain(turn, names) for turn in turns]
        if not functions:
            return plain, []
        system = INSTRUCTION.format(functions="\n".join(map(_json, functions)))
        if plain[0]["role"] == "system":
            return [{"role": "system", "content": f"{plain[0]['content']}\n\n{system}"}, *plain[1:]], []
        return [{"role": "system", "content": system}, *plain], []

    def form(self, call: FormPart, text: FormPart | None, *, is_required: bool, several: bool) -> FormPart:
        calls = _calls(call, several=several)
        if is_required:
            return calls
        return Alternatives((text or read_regex(r"(?:[^\s{](?s:.)*)?"), calls))


def find_call_syntax(template: str) -> CallSyntax:
    if GEMMA_OPENING in template:
        return GemmaCalls()
    return TaggedCalls() if OPENING in template and "tools" in template else JsonCalls()


def call_form(arguments: Mapping[str, FormPart]) -> FormPart:
    """One call. `arguments`: the arguments of each function, by the function's name."""
    ways = [
        JoinedParts((member("name", constant(name)), COMMA, member("arguments", own)))
        for name, own in arguments.items()
    ]
    return JoinedParts((Literal("{"), either(ways), Literal("}")))


def _calls(call: FormPart, *, several: bool) -> FormPart:
    return JoinedParts((Looped(call, NEWLINE, NOTHING), NEWLINE)) if several else call


def _plain(turn: Turn, names: Mapping[str, str]) -> Turn:
    """The same turn for a chat template without tools."""
    if turn["role"] == "tool":
        name = names.get(turn.get("tool_call_id", ""), "the function")
        return {"role": "user", "content": f"Result of {name}: {turn['content']}"}
    called = (call["function"] for call in turn.get("tool_calls", ()))
    lines = (_json({"name": each["name"], "arguments": each["arguments"]}) for each in called)
    kept = {name: value for name, value in turn.items() if name != "tool_calls"}
    return kept | {"content": "\n".join(filter(None, (turn["content"], *lines)))}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _without(mark: str) -> str:
    """The pattern of texts that do not contain `mark`. The first character of `mark` occurs once in it."""
    first, rest = mark[0], ""
    for character in reversed(mark[1:]):
        here = re.escape(character)
        longer = f"|{here}{rest}" if rest else ""
        rest = f"(?:[^{first}{here}][^{first}]*{longer})?"
    return f"[^{first}]*(?:{first}{rest})*"
