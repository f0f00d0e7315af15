"""The bodies of POST /v1/messages and /v1/messages/count_tokens. A chat completion answers a message."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from services.gateway.api.anthropic_messages.tools import (
    Block,
    MessageTool,
    MessageToolChoice,
    chat_messages,
    read_blocks,
)
from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.other_fields import NEUTRAL_IN_OTHER_FORMS
from services.gateway.api.request_models import ChatBody, ServedBody, StopString, TextOrParts, joined
from services.gateway.api.tool_calls.models import MAX_TOOLS


class Turn(Lenient):
    """A message of the conversation: a text, or blocks of which some are calls of tools or their results."""

    role: Literal["user", "assistant"]
    content: Annotated[str | list[Block], BeforeValidator(read_blocks, json_schema_input_type=str | list[Block])]

    @field_validator("content")
    @classmethod
    def _check_role(cls, content: str | list[Block], info: ValidationInfo) -> str | list[Block]:
        refused = "tool_use" if info.data.get("role") == "user" else "tool_result"
        if not isinstance(content, str) and any(block.type == refused for block in content):
            raise unsupported(f"must have no block of the type {refused!r} in a message of this role")
        return content

    def chat_messages(self) -> list[dict[str, Any]]:
        """As a chat has them."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        return chat_messages(self.role, self.content)


class UserMetadata(Lenient):
    user_id: str | None = None


class ThinkingOptions(Lenient):
    type: Literal["disabled"]


class OutputOptions(Lenient):
    effort: str | None = None
    format: None = None


class ConversationBody(Lenient):
    """The conversation, and fields that are accepted only with values that have no effect."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1, fail_fast=True)]
    system: TextOrParts | None = None

    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None
    output_format: None = None
    thinking: ThinkingOptions | None = None

    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessageToolChoice | None = None

    @field_validator("messages")
    @classmethod
    def _require_question(cls, messages: list[Turn]) -> list[Turn]:
        if messages[-1].role != "user":
            raise unsupported("must end with a message of the user: the model does not continue a given reply")
        return messages

    def conversation(self) -> dict[str, Any]:
        """The fields of a chat's prompt, the system prompt first, and its tools."""
        system = [{"role": "system", "content": text}] if (text := joined(self.system)) else []
        messages = [message for turn in self.messages for message in turn.chat_messages()]
        choice = self.tool_choice.of_chat() if self.tool_choice else {}
        return {"messages": [*system, *messages], "tools": [tool.of_chat() for tool in self.tools or ()], **choice}


class CountTokensBody(ConversationBody):
    """POST /v1/messages/count_tokens."""

    def chat(self) -> "MessageChat":
        return MessageChat.model_validate({"model": self.model, **self.conversation()})


class MessageBody(ConversationBody, ServedBody):
    """POST /v1/messages."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_IN_OTHER_FORMS

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[StopString], Field(max_length=4, fail_fast=True)] | None = None
    metadata: UserMetadata | None = None
    output_config: OutputOptions | None = None
    service_tier: Annotated[
        str | None, BeforeValidator(lambda tier: "auto" if tier == "standard_only" else tier)  # both are neutral
    ] = None

    @property
    def effort(self) -> tuple[str, str | None]:
        return "output_config.effort", self.output_config.effort if self.output_config else None

    def completion(self) -> "MessageChat":
        shared = {name: getattr(self, name) for name in ServedBody.model_fields}
        own = {**self.conversation(), "max_tokens": self.max_tokens, "stop": self.stop_sequences}
        return MessageChat.model_validate({**shared, **own})


class MessageChat(ChatBody):
    """The chat completion of a message; errors name the message's fields."""

    parameters_field: ClassVar[str] = "tools[{}].input_schema"
