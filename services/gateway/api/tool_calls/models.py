"""The fields with which a client describes tools, chooses among them, and sends calls back: those of OpenAI's chats,
and what the bodies of all APIs share."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field

from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.other_fields import LeftOut, OrLeftOut, leaving_out
from services.gateway.api.tool_calls.call_syntax import CallSyntax
from services.gateway.api.tool_calls.use import ToolUse, UsableTool

MAX_TOOLS = 128
MODES = ("none", "auto", "required")
BUILT_IN = leaving_out("(?!function$).+")

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class NamedFunction(Lenient):
    schema_field: ClassVar[str] = "parameters"  # the field with the JSON schema of its arguments

    name: ToolName
    description: str | None = None
    strict: bool | None = None  # the arguments of every call match the schema

    def at(self, field: str) -> UsableTool:
        """`field`: the place of this function in its body."""
        schema = getattr(self, self.schema_field)
        return UsableTool(f"{field}.{self.schema_field}", self.name, self.description, schema, self.strict)


class Function(NamedFunction):
    parameters: dict[str, Any] | None = None  # None: the function takes no arguments


class Tool(Lenient):
    type: Literal["function"]
    function: Function

    def at(self, field: str) -> UsableTool:
        """`field`: the place of this tool in its body."""
        return self.function.at(f"{field}.function")


class FunctionName(Lenient):
    name: str


class NamedTool(Lenient):
    """The choice of one function, which is then called once: as chats have it, or as responses have it."""

    type: Literal["function"]
    function: FunctionName | None = None
    name: str | None = None


class CalledFunction(Lenient):
    name: str
    arguments: str | dict[str, Any]  # JSON, as the model wrote it, or its value


class ToolCall(Lenient):
    """A call in a message of the assistant."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


def _check_choice(choice: Any) -> Any:
    """`any` is Mistral's for `required`."""
    named = None
    if isinstance(choice, dict) and choice.get("type") == "function":
        named = choice.get("function") or choice
    if choice is None or choice in MODES or (isinstance(named, dict) and isinstance(named.get("name"), str)):
        return choice
    if choice == "any":
        return "required"
    forms = "{'type': 'function', 'function': {'name': '...'}}, of responses also {'type': 'function', 'name': '...'}"
    raise unsupported(f"must be {', '.join(map(repr, MODES))} or {forms}")


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool,
    BeforeValidator(_check_choice, json_schema_input_type=Literal["none", "auto", "required"] | NamedTool),
]
Tools = Annotated[list[Annotated[OrLeftOut[Tool], BUILT_IN]], Field(max_length=MAX_TOOLS, fail_fast=True)]


class CallRules(NamedTuple):
    """The rules for calls, as in `ToolUse.of`."""

    mode: str | None = None
    named: str | None = None
    parallel: bool | None = None

    @classmethod
    def of(cls, choice: NamedTool | str | None, parallel: bool | None) -> Self:
        """Of a chat or a response."""
        if not isinstance(choice, NamedTool):
            return cls(choice, None, parallel)
        return cls(None, choice.function.name if choice.function is not None else choice.name, parallel)


class WithTools(Lenient):
    """A body with tools. Tools that are no functions are left out."""

    tools: Sequence[Any] | None = None

    @property
    def choice(self) -> CallRules:
        return CallRules()

    def tool_use(self, syntax: CallSyntax) -> ToolUse:
        """The tools that the model may call. Raises: as ToolUse.of."""
        tools = enumerate(self.tools or ())
        usable = [tool.at(f"tools[{at}]") for at, tool in tools if not isinstance(tool, LeftOut)]
        return ToolUse.of(syntax, usable, *self.choice)
