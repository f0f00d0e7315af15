"""The fields of OpenAI's Responses API for tools."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.tool_calls.models import MODES, ToolName


class ResponseTool(Lenient):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(Lenient):
    """The choice of one function, which is then called once."""

    type: Literal["function"]
    name: str


def _check_choice(choice: Any) -> Any:
    is_named = isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str)
    if choice is None or choice in MODES or is_named:
        return choice
    raise unsupported(f"must be {', '.join(map(repr, MODES))} or {{'type': 'function', 'name': '...'}}")


ResponseToolChoice = Annotated[
    Literal["none", "auto", "required"] | FunctionChoice,
    BeforeValidator(_check_choice, json_schema_input_type=Literal["none", "auto", "required"] | FunctionChoice),
]
