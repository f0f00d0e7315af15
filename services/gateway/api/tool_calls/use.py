"""Writes the tools of a body into its prompt and its pattern, and finds the calls in its reply."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from services.gateway.api.prompts import Chat, Turn
from services.gateway.api.thoughts import ThoughtMarks
from services.gateway.api.tool_calls.call_syntax import CallSyntax, call_form
from services.gateway.api.tool_calls.call_text import ReadText
from services.gateway.errors import MAX_NAME_LENGTH
from shared.errors import BadInput
from shared.patterns.json_schema import schema_parts
from shared.patterns.parts import FormPart
from shared.patterns.schema_keywords import ASSERTIONS

NO_ARGUMENTS = {"type": "object", "additionalProperties": False}
READ_BY_NAME = {"type", "properties", "required", "additionalProperties"}  # by `schema` below


@dataclass(frozen=True, slots=True)
class UsableTool:
    """A tool of a body. `field`: the body's field with the schema of its arguments."""

    field: str
    name: str
    description: str | None
    parameters: dict[str, Any] | None  # a JSON schema; None: the function takes no arguments
    strict: bool | None

    @property
    def described(self) -> Turn:
        fields = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def schema(self) -> Any:
        """The schema of its arguments. Raises: BadInput naming the field if they are no object."""
        if self.parameters is None:
            return NO_ARGUMENTS
        kinds = self.parameters.get("type") or "object"
        if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
            raise BadInput(f"{self.field} must be of the type object", self.field)
        rest = self.parameters.keys() - READ_BY_NAME
        declares = (
            self.parameters.get("properties") or self.parameters.get("required") or not rest.isdisjoint(ASSERTIONS)
        )
        is_open = declares or self.parameters.get("additionalProperties")
        return {**self.parameters, "type": "object", "nullable": False} if is_open else NO_ARGUMENTS


class CallRules(NamedTuple):
    """Rules for the calls of a reply."""

    mode: str | None = None  # none, auto (as None) or required
    named: str | None = None  # the one tool that the client has chosen
    parallel: bool | None = None  # false: one call at most
    allowed: Collection[str] | None = None  # the tools among which the model may choose; None: all


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the model may call, the rules for calls, and the marks of its thoughts."""

    syntax: CallSyntax
    tools: Sequence[UsableTool] = ()
    is_required: bool = False
    several: bool = True
    is_named: bool = False
    thoughts: ThoughtMarks | None = None  # None: all text is an answer

    @classmethod
    def of(cls, syntax: CallSyntax, tools: Sequence[UsableTool], rules: CallRules) -> Self:
        """Raises: BadInput naming the field if two tools have the same name, or a chosen one is missing."""
        mode, named, parallel, allowed = rules
        names = [tool.name for tool in tools]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise BadInput(f"tools has two functions with the name {repeated!r}", "tools")
        chosen = [named] if named is not None else names if allowed is None else allowed
        if not (names and chosen) and (chosen or mode == "required"):
            message = "tool_choice must allow a function" if names else "tool_choice needs functions in tools"
            raise BadInput(message, "tool_choice")
        missing = next((name for name in chosen if name not in names), None)
        if missing is not None:
            named_one, known = missing[:MAX_NAME_LENGTH], ", ".join(names)
            raise BadInput(f"tool_choice names {named_one!r}, no function of tools; they are {known}", "tool_choice")
        if mode == "none":
            return cls(syntax)
        usable = [tool for tool in tools if tool.name in chosen]
        if named is not None:
            return cls(syntax, usable, is_required=True, several=False, is_named=True)
        return cls(syntax, usable, is_required=mode == "required", several=parallel is not False)

    def chat(
        self, turns: Sequence[Turn], *, opens_reply: bool = True, options: Mapping[str, Any] | None = None
    ) -> Chat:
        """The prompt with these turns, in which the model may call the tools. `options`: of the chat template."""
        both = self.syntax.conversation(turns, [tool.described for tool in self.tools])
        return Chat(*both, opens_reply, options or {})

    @property
    def key(self) -> str:
        """Equal for uses with the same form."""
        return f"{type(self.syntax).__name__} {self.tools} {self.is_required} {self.several}" if self.tools else ""

    def form(self, text: FormPart | None, left_out: list[str]) -> FormPart | str:
        """The form of the whole text, or its pattern; empty: any text. `text`: that of texts without calls; None: any.
        `left_out` gets the fields of what cannot be written and is not needed.

        Raises: BadInput.
        """
        names = [tool.name for tool in self.tools]
        is_constrained = self.is_required or any(tool.strict for tool in self.tools)  # to calls that match their schema
        if not is_constrained and text is None:
            return self.syntax.free_pattern(names)
        try:
            arguments = schema_parts({tool.field: tool.schema for tool in self.tools}, left_out)
        except BadInput as error:
            field = str(error.field)
            message = error.message if error.message.startswith(field) else f"{field}: {error.message}"
            raise BadInput(message, field) from None
        except RecursionError:
            raise BadInput("tools has a schema with too many levels", "tools") from None
        call = call_form(dict(zip(names, arguments, strict=True)))
        return self.syntax.form(call, text, is_required=self.is_required, several=self.several)

    def read(self, text: str, is_whole: bool) -> ReadText:
        """The thought, the content and the calls of a text. `is_whole`: nothing follows it."""
        thought, answer = self.thoughts.split(text, is_whole) if self.thoughts else ("", text)
        if not self.tools:
            return ReadText((answer,) if answer else (), thought)
        found = self.syntax.reader.read(answer, is_whole=is_whole)
        return replace(found if self.several else found.with_one_call(), thought=thought)
