"""The fields of Anthropic's Messages API for tools, and a chat's for them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from services.gateway.api.base_models import Lenient, unsupported, wrong_field
from services.gateway.api.request_models import TextOrParts, TextPart, check_parts, joined
from services.gateway.api.tool_calls.models import ToolName, chat_tool


class MessageTool(Lenient):
    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    def of_chat(self) -> dict[str, Any]:
        """As a chat completion has it."""
        return chat_tool(self.name, self.description, self.input_schema, strict=self.strict)


class MessageToolChoice(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _require_name(self) -> "MessageToolChoice":
        if (self.type == "tool") != (self.name is not None):
            raise wrong_field("name", "is required with type tool, and only allowed there")
        return self

    def of_chat(self) -> dict[str, Any]:
        """As a chat completion has it."""
        named = {"type": "function", "function": {"name": self.name}}
        choice = named if self.type == "tool" else "required" if self.type == "any" else self.type
        return {"tool_choice": choice, "parallel_tool_calls": not self.disable_parallel_tool_use}


class CallBlock(Lenient):
    """A call, in a message of the assistant."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]

    def of_chat(self) -> dict[str, Any]:
        """As a chat completion has it."""
        function = {"name": self.name, "arguments": json.dumps(self.input, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


class ResultBlock(Lenient):
    """The result of a call, in a message of the user."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextOrParts | None = None

    def of_chat(self) -> dict[str, Any]:
        """As a chat completion has it."""
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": joined(self.content)}


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


def chat_messages(role: str, content: Sequence[Block]) -> list[dict[str, Any]]:
    """The messages of a chat with these blocks: the results of calls, then the text and the calls."""
    messages = [block.of_chat() for block in content if isinstance(block, ResultBlock)]
    calls = [block.of_chat() for block in content if isinstance(block, CallBlock)]
    texts = [block.text for block in content if isinstance(block, TextPart)]
    if texts or calls or not messages:
        messages.append({"role": role, "content": "\n".join(texts), "tool_calls": calls or None})
    return messages


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
