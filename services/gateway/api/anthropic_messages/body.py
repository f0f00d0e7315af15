"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from services.gateway.api.anthropic_messages.replies import MessageReplies
from services.gateway.api.anthropic_messages.tools import Block, MessageTool, MessageToolChoice, read_blocks, turns_of
from services.gateway.api.base_models import Lenient, unsupported
from services.gateway.api.other_fields import NEUTRAL_IN_OTHER_FORMS
from services.gateway.api.plan import BodyPlan, BodyPlanner, WantedCompletion
from services.gateway.api.prompts import Chat
from services.gateway.api.request_models import ServedBody, StopString, TextOrParts, joined
from services.gateway.api.tool_calls.call_syntax import CallSyntax, Turn
from services.gateway.api.tool_calls.models import MAX_TOOLS, check_choice
from services.gateway.api.tool_calls.use import ToolUse, UsableTool, turn


class MessageTurn(Lenient):
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

    def turns(self) -> list[Turn]:
        """As a chat has them."""
        return [turn(self.role, self.content)] if isinstance(self.content, str) else turns_of(self.role, self.content)


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
    messages: Annotated[list[MessageTurn], Field(min_length=1, fail_fast=True)]
    system: TextOrParts | None = None

    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None
    output_format: None = None
    thinking: ThinkingOptions | None = None

    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessageToolChoice | None = None

    @field_validator("messages")
    @classmethod
    def _require_question(cls, messages: list[MessageTurn]) -> list[MessageTurn]:
        if messages[-1].role != "user":
            raise unsupported("must end with a message of the user: the model does not continue a given reply")
        return messages

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        check_choice([tool.name for tool in self.tools or ()], *self._choice())
        return self

    def _choice(self) -> tuple[str | None, str | None]:
        """As the arguments of `ToolUse.of`."""
        return (self.tool_choice.mode, self.tool_choice.name) if self.tool_choice else (None, None)

    def tool_use(self, syntax: CallSyntax) -> ToolUse:
        tools = [
            UsableTool(f"tools[{at}].input_schema", tool.name, tool.description, tool.input_schema, tool.strict)
            for at, tool in enumerate(self.tools or ())
        ]
        is_single = self.tool_choice is not None and self.tool_choice.disable_parallel_tool_use
        return ToolUse.of(syntax, tools, *self._choice(), parallel=not is_single)

    def chat(self, tools: ToolUse) -> Chat:
        """The prompt, the system prompt first."""
        system = [turn("system", text)] if (text := joined(self.system)) else []
        return tools.chat([*system, *(each for message in self.messages for each in message.turns())])


class CountTokensBody(ConversationBody):
    """POST /v1/messages/count_tokens."""


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

    async def plan(self, planner: BodyPlanner) -> BodyPlan:
        tools = self.tool_use(planner.syntax)
        wanted = WantedCompletion(
            prompts=[self.chat(tools)],
            prompt_field="messages",
            limit=("max_tokens", self.max_tokens),
            passed=self.passed(),
            tools=tools,
            stop=self.stop_sequences or (),
        )
        return await planner.plan(wanted, lambda request_id, _: MessageReplies(self.model, request_id, tools))
