"""The bodies of POST /v1/messages and /v1/messages/count_tokens. A chat completion answers a message."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.other_fields import NEUTRAL_IN_OTHER_FORMS
from services.gateway.api.request_models import ChatBody, ServedBody, StopString, TextPart, TokenizeBody, join_parts

TextOrBlocks = Annotated[str, BeforeValidator(join_parts, json_schema_input_type=str | list[TextPart])]


class Turn(Lenient):
    """A message of the conversation."""

    role: Literal["user", "assistant"]
    content: TextOrBlocks


class UserMetadata(Lenient):
    user_id: str | None = None


class ThinkingOptions(Lenient):
    type: Literal["disabled"]


class ToolChoice(Lenient):
    type: Literal["auto", "none"]


class OutputOptions(Lenient):
    effort: str | None = None
    format: None = None


class ConversationBody(Lenient):
    """The conversation, and fields that are accepted only with values that have no effect."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1, fail_fast=True)]
    system: TextOrBlocks | None = None

    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None
    output_format: None = None
    thinking: ThinkingOptions | None = None
    tool_choice: ToolChoice | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None

    @field_validator("messages")
    @classmethod
    def _require_question(cls, messages: list[Turn]) -> list[Turn]:
        if messages[-1].role != "user":
            raise unsupported("must end with a message of the user: the model does not continue a given reply")
        return messages

    def chat_messages(self) -> list[dict[str, str]]:
        """The messages of the chat, the system prompt first."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *({"role": each.role, "content": each.content} for each in self.messages)]


class CountTokensBody(ConversationBody):
    """POST /v1/messages/count_tokens."""

    def tokenize_body(self) -> TokenizeBody:
        return TokenizeBody.model_validate({"model": self.model, "messages": self.chat_messages()})


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

    def completion(self) -> ChatBody:
        shared = {name: getattr(self, name) for name in ServedBody.model_fields}
        own = {"messages": self.chat_messages(), "max_tokens": self.max_tokens, "stop": self.stop_sequences}
        return ChatBody.model_validate({**shared, **own})
