"""The fields of Anthropic's Messages API for tools, and the turns of a chat with them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from services.gateway.api.base_models import Lenient, unsupported, wrong_field
from services.gateway.api.request_models import TextOrParts, TextPart, check_parts, joined
from services.gateway.api.tool_calls.call_syntax import Turn
from services.gateway.api.tool_calls.models import ToolName
from services.gateway.api.tool_calls.use import call, turn


class MessageTool(Lenient):
    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


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
    def mode(self) -> str:
        """As a chat completion has it."""
        return "required" if self.type in {"any", "tool"} else self.type


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


Block = TextPart | CallBlock | ResultBlock
_KINDS: Mapping[str, tuple[type[Block], str]] = {
    "text": (TextPart, "{'type': 'text', 'text': '...'}"),
    "tool_use": (CallBlock, "{'type': 'tool_use', 'id': '...', 'name': '...', 'input': {...}}"),
    "tool_result": (ResultBlock, "{'type': 'tool_result', 'tool_use_id': '...', 'content': '...'}, with text only"),
}


def read_blocks(content: Any) -> Any:
    """Check the content of a message. Returns: blocks if there are calls or results, otherwise the content."""
    if not isinstance(content, list) or {_kind(part) for part in content}.isdisjoint({"tool_use", "tool_result"}):
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


def _kind(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def _block(index: int, part: Any) -> Block:
    model, form = _KINDS.get(_kind(part) or "", (None, ""))
    if model is None:
        raise unsupported(f"part {index} must be of one of the types {', '.join(_KINDS)}")
    try:
        return model.model_validate(part)
    except ValidationError:
        raise unsupported(f"part {index} must be of the form {form}") from None
