"""The fields of Anthropic's Messages API for tools, and the turns of a chat with them."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from services.gateway.api.base_models import Lenient, wrong_field
from services.gateway.api.content import TextOrParts, TextPart, joined
from services.gateway.api.other_fields import LeftOut, OrLeftOut, kind_of, leaving_out
from services.gateway.api.prompts import Turn, call, turn
from services.gateway.api.tool_calls.models import MAX_TOOLS, NamedFunction
from services.gateway.api.tool_calls.use import CallRules


class MessageTool(NamedFunction):
    schema_field: ClassVar[str] = "input_schema"

    type: Literal["custom"] | None = None
    input_schema: dict[str, Any]


MessageTools = Annotated[
    list[Annotated[OrLeftOut[MessageTool], leaving_out("(?!(custom|function)$).+")]],
    Field(max_length=MAX_TOOLS, fail_fast=True),
]


class MessageToolChoice(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _require_name(self) -> "MessageToolChoice":
        if (self.type == "tool") != (self.name is not None):
            raise wrong_field("name", "is required with type tool, and only allowed there")
        return self

    @property
    def rules(self) -> CallRules:
        mode = "required" if self.type in {"any", "tool"} else self.type
        return CallRules(mode, self.name, not self.disable_parallel_tool_use)


class CallBlock(Lenient):
    """A call, in a message of the assistant."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ResultBlock(Lenient):
    """The result of a call, in a message of the user."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextOrParts | None = None


# Blocks of an earlier reply of another model: thoughts, and tools that its server ran
LEFT_OUT = re.compile("(redacted_)?thinking|(server|mcp)_tool_use|[a-z_]+_tool_result")
# Tags of `Block` by type; `errors.py` knows the members of a union by their capitals
KINDS: Mapping[str, str] = {"text": "Text", "tool_use": "Call", "tool_result": "Result"}
Block = Annotated[
    Annotated[TextPart, Tag("Text")]
    | Annotated[CallBlock, Tag("Call")]
    | Annotated[ResultBlock, Tag("Result")]
    | Annotated[LeftOut, Tag("LeftOut")],
    Discriminator(
        lambda block: "LeftOut" if LEFT_OUT.fullmatch(kind_of(block)) else KINDS.get(kind_of(block)),
        custom_error_type="unsupported",
        custom_error_message=f"must be of one of the types {', '.join(KINDS)}; only text and calls are supported",
    ),
]
Content = str | Annotated[list[Block], Field(fail_fast=True)]


def turns_of(role: str, content: Sequence[Block]) -> list[Turn]:
    """The turns of a chat with these blocks: the results of calls, then the text and the calls."""
    results = [block for block in content if isinstance(block, ResultBlock)]
    turns: list[Turn] = [turn("tool", joined(each.content), result_of=each.tool_use_id) for each in results]
    calls = [call(block.id, block.name, block.input) for block in content if isinstance(block, CallBlock)]
    texts = [block.text for block in content if isinstance(block, TextPart)]
    if texts or calls or not turns:
        turns.append(turn(role, "\n".join(texts), calls))
    return turns
