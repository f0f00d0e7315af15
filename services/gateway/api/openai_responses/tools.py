"""The fields of OpenAI's Responses API for tools."""

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from services.gateway.api.base_models import Lenient
from services.gateway.api.other_fields import OrLeftOut
from services.gateway.api.tool_calls.models import BUILT_IN, MAX_TOOLS, Function, check_choice
from services.gateway.api.tool_calls.use import UsableTool


class ResponseTool(Function):
    type: Literal["function"]

    def at(self, field: str) -> UsableTool:
        """`field`: the tool's place in its body."""
        return self.usable(f"{field}.parameters", self.parameters)


class FunctionChoice(Lenient):
    """The choice of one function, which is then called once."""

    type: Literal["function"]
    name: str


ResponseToolChoice = Annotated[
    Literal["none", "auto", "required"] | FunctionChoice,
    BeforeValidator(
        partial(check_choice, "{'type': 'function', 'name': '...'}", ("name",)),
        json_schema_input_type=Literal["none", "auto", "required"] | FunctionChoice,
    ),
]
ResponseTools = Annotated[
    list[Annotated[OrLeftOut[ResponseTool], BUILT_IN]], Field(max_length=MAX_TOOLS, fail_fast=True)
]
