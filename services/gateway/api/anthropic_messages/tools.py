"""The fields of Anthropic's Messages API for tools, and the turns of a chat with them."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from services.gateway.api.base_models import Lenient, unsupported, wrong_field
from services.gateway.api.chat_turns import Turn, call, turn
from services.gateway.api.content import MAX_KIND_LENGTH, TextOrParts, TextPart, check_parts, joined
from services.gateway.api.other_fields import OrLeftOut, leaving_out
from services.gateway.api.tool_calls.models import MAX_TOOLS, NamedFunction
from services.gateway.api.tool_calls.use import CallRules


class MessageTool(NamedFunction):
    schema_field: ClassVar[str] = "input_schema"

    type: Literal["custom"] | None = None
    input_schema: dict[str, Any]


MessageTools = Annotated[
    list[Annotated[OrLeftOut[MessageTool], leaving_out("(?!custom$).+")]], Field(max_length=MAX_TOOLS, fail_fast=True)
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
        """As a chat completion has it."""
        mode = "required" if self.type in {"any", "tool"} else self.type
        return CallRules(mode, self.name, not self.disable_parallel_tool_use)


class CallBlock(Lenient):
    """A call, in a message of the assistant."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


def named_tools(content: Any) -> Any:
    """Replace the references of a tool search's result by the names of the tools."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get("tool_name")} if _kind(part) == "tool_reference" else part for part in content
    ]


class ResultBlock(Lenient):
    """The result of a call, in a message of the user."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[TextOrParts | None, BeforeValidator(named_tools)] = None


Served = TextPart | CallBlock | ResultBlock
# Blocks of an earlier reply of another model: thoughts, and tools that its server ran
LEFT_OUT = "(redacted_)?thinking|(server|mcp)_tool_use|[a-z_]+_tool_result"
Block = Annotated[OrLeftOut[Served], leaving_out(LEFT_OUT)]
_KINDS: Mapping[str, tuple[type[Served], str]] = {
    "text": (TextPart, "{'type': 'text', 'text': '...'}"),
    "tool_use": (CallBlock, "{'type': 'tool_use', 'id': '...', 'name': '...', 'input': {...}}"),
    "tool_result": (ResultBlock, "{'type': 'tool_result', 'tool_use_id': '...', 'content': '...'}, with text only"),
}


def read_blocks(content: Any) -> Any:
    """Check the content of a message. Returns: blocks if some are not text, otherwise the content."""
    if not isinstance(content, list) or {_kind(part) for part in content} <= {"text"}:
        return check_parts(content)
    return [_block(i, part) for i, part in enumerate(content)]


def turns_of(role: str, content: Sequence[Block]) -> list[Turn]:
    """The turns of a chat with these blocks: the results of calls, then the text and the calls."""
    results = [block for block in content if isinstance(block, ResultBlock)]
    turns: list[Turn] = [turn("tool", joined(each.content), result_of=each.tool_use_id) for each in results]
    calls = [call(block.id, block.name, block.input) for block in content if isinstance(block, CallBlock)]
    texts = [block.text for block in content if isinstance(block, TextPart)]
    if texts or calls or not turns:
        turns.append(turn(role, "\n".join(texts), calls))
    return turns


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _block(index: int, part: Any) -> Any:
    """A block, or one that is left out as it is."""
    kind = _kind(part)
    if re.fullmatch(LEFT_OUT, kind):
        return part
    model, form = _KINDS.get(kind, (None, ""))
    if model is None:
        given = f", not of the type {kind[:MAX_KIND_LENGTH]!r}" if kind else ""
        raise unsupported(f"part {index} must be of one of the types {', '.join(_KINDS)}{given}")
    try:
        return model.model_validate(part)
    except ValidationError:
        raise unsupported(f"part {index} must be of the form {form}") from None
