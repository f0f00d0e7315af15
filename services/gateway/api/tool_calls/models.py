"""The fields of OpenAI's API with which a client describes tools, chooses among them, and sends calls back."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from services.gateway.api.base_models import Lenient, unsupported, wrong_field

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
    if choice is None or choice in MODES or is_named:
        return choice
    form = "{'type': 'function', 'function': {'name': '...'}}"
    raise unsupported(f"must be {', '.join(map(repr, MODES))} or {form}")


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool,
    BeforeValidator(_check_choice, json_schema_input_type=Literal["none", "auto", "required"] | NamedTool),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]


def check_choice(names: Sequence[str], mode: str | None, named: str | None) -> None:
    """`names`: of the tools; `mode` and `named`: as in `ToolUse.of`.

    Raises: PydanticCustomError for the field that contradicts another one.
    """
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise wrong_field("tools", f"has two functions with the name {repeated!r}")
    if named is None and mode in (None, "none", "auto"):
        return
    if not names:
        raise wrong_field("tool_choice", "is only allowed with tools")
    if named is not None and named not in names:
        raise wrong_field("tool_choice", f"names no function of tools; they are {', '.join(names)}")
