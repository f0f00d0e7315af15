"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from services.gateway.api.anthropic_messages.replies import MessageReplies
from services.gateway.api.anthropic_messages.tools import Content, MessageToolChoice, MessageTools, turns_of
from services.gateway.api.base_models import Lenient, OfModel, unsupported
from services.gateway.api.content import TextOrParts, joined
from services.gateway.api.field_types import MaxTokens, StopStrings
from services.gateway.api.form_fields import ResponseFormat
from services.gateway.api.other_fields import NEUTRAL_IN_OTHER_FORMS
from services.gateway.api.plan import BodyPlanner
from services.gateway.api.prompts import Chat, Turn, turn
from services.gateway.api.request_models import ServedBody
from services.gateway.api.tool_calls.models import WithTools
from services.gateway.api.tool_calls.use import CallRules, ToolUse
from services.gateway.api.wanted_completion import WantedCompletion

BILLING_START = "x-anthropic-billing-header:"  # of Claude Code's system block that changes in each request
ROLE_OF_BLOCK = {"tool_use": "assistant", "tool_result": "user"}  # of the messages that may have such a block


class MessageTurn(Lenient):
    """A message of the conversation: a text, or blocks of which some are calls of tools or their results."""

    role: Literal["user", "assistant", "system"]
    content: Content

    @field_validator("content")
    @classmethod
    def _check_role(cls, content: Content, info: ValidationInfo) -> Content:
        role = info.data.get("role")
        for block in () if isinstance(content, str) else content:
            if ROLE_OF_BLOCK.get(block.type, role) != role:
                raise unsupported(f"must have no block of the type {block.type!r} in a message of this role")
        return content

    def turns(self) -> list[Turn]:
        return [turn(self.role, self.content)] if isinstance(self.content, str) else turns_of(self.role, self.content)


class OutputOptions(Lenient):
    effort: str | None = None
    format: ResponseFormat | None = None


def without_billing(system: Any) -> Any:
    """Drop that block: it would make each prompt begin differently, so that no prefix cache could be used."""
    if not isinstance(system, list):
        return system
    return [part for part in system if not (isinstance(part, dict) and str(part.get("text")).startswith(BILLING_START))]


class ConversationBody(OfModel, WithTools):
    messages: Annotated[list[MessageTurn], Field(min_length=1, fail_fast=True)]
    system: Annotated[TextOrParts | None, BeforeValidator(without_billing)] = None
    tools: MessageTools | None = None
    tool_choice: MessageToolChoice | None = None

    @field_validator("messages")
    @classmethod
    def _require_question(cls, messages: list[MessageTurn]) -> list[MessageTurn]:
        spoken = [message.role for message in messages if message.role != "system"]
        if spoken[-1:] != ["user"]:
            raise unsupported("must end with a message of the user: the model does not continue a given reply")
        return messages

    @property
    def rules(self) -> CallRules:
        return self.tool_choice.rules if self.tool_choice is not None else CallRules()

    def chat(self, tools: ToolUse) -> Chat:
        system = [turn("system", text)] if (text := joined(self.system)) else []
        return tools.chat([*system, *(each for message in self.messages for each in message.turns())])


class CountTokensBody(ConversationBody):
    """POST /v1/messages/count_tokens."""


class MessageBody(ConversationBody, ServedBody):
    """POST /v1/messages."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_IN_OTHER_FORMS

    max_tokens: MaxTokens
    stop_sequences: StopStrings | None = None
    output_config: OutputOptions | None = None
    output_format: ResponseFormat | None = None  # the earlier place of the format
    service_tier: Annotated[
        str | None, BeforeValidator(lambda tier: "auto" if tier == "standard_only" else tier)  # both are neutral
    ] = None

    @property
    def effort(self) -> tuple[str, str | None]:
        return "output_config.effort", self.output_config.effort if self.output_config else None

    async def wanted(self, planner: BodyPlanner) -> WantedCompletion:
        tools = self.tool_use(planner.text)
        in_config = self.output_config.format if self.output_config is not None else None
        formats = {"output_config.format": in_config, "output_format": self.output_format}
        return WantedCompletion(
            prompts=[self.chat(tools)],
            prompt_field="messages",
            limit=("max_tokens", self.max_tokens),
            passed=self.passed(),
            tools=tools,
            replies=lambda request_id, _: MessageReplies(planner.text.card.name, request_id, tools),
            stop=self.stop_sequences or (),
            forms=[form for name, given in formats.items() if given is not None for form in given.forms(name)],
        )
