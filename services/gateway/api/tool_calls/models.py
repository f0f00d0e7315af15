"""The fields of OpenAI's API with which a client describes tools, chooses among them, and sends calls back."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from services.gateway.api.base_models import Lenient, unsupported

MAX_TOOLS = 128
MODES = ("none", "auto", "required")

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class Function(Lenient):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: the function takes no arguments
    strict: bool | None = None  # the arguments of every call match the schema


class Tool(Lenient):
    type: Literal["function"]
    function: Function


def chat_tool(
    name: str, description: str | None, parameters: dict[str, Any] | None, *, strict: bool | None
) -> dict[str, Any]:
    """The tool of a chat's body; the arguments are the fields of `Function`."""
    function = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


class FunctionName(Lenient):
    name: str


class NamedTool(Lenient):
    """The choice of one tool, which is then called once."""

    type: Literal["function"]
    function: FunctionName


class CalledFunction(Lenient):
    name: str
    arguments: str  # JSON, as the model wrote it


class ToolCall(Lenient):
    """A call in a message of the assistant."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


def _check_choice(choice: Any) -> Any:
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    is_named = isinstance(function, dict) and isinstance(function.get("name"), str)
    if choice is None or choice in MODES or is_named or isinstance(choice, NamedTool):
        return choice
    form = "{'type': 'function', 'function': {'name': '...'}}"
    raise unsupported(f"must be {', '.join(map(repr, MODES))} or {form}")


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool,
    BeforeValidator(_check_choice, json_schema_input_type=Literal["none", "auto", "required"] | NamedTool),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


def wrong_choice(tools: Sequence[Tool], choice: str | NamedTool | None) -> tuple[str, str] | None:
    """The field that contradicts another one, and the reason; None: there is none."""
    names = [tool.function.name for tool in tools]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        return "tools", f"has two functions with the name {repeated!r}"
    if choice in (None, "none", "auto"):
        return None
    if not tools:
        return "tool_choice", "is only allowed with tools"
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        return "tool_choice", f"names no function of tools; they are {', '.join(names)}"
    return None
