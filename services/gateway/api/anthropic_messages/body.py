"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and the turns of a chat with them."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from services.gateway.api.anthropic_messages.replies import MessageReplies
from services.gateway.api.base_models import Lenient, OfModel, unsupported, wrong_field
from services.gateway.api.field_types import MaxTokens, ResponseFormat, StopStrings
from services.gateway.api.other_fields import NEUTRAL_IN_OTHER_FORMS, LeftOut, OrLeftOut, kind_of, leaving_out
from services.gateway.api.plan import BodyPlanner, WantedCompletion
from services.gateway.api.prompts import Chat, TextOrParts, TextPart, Turn, call, joined, turn, without_documents
from services.gateway.api.request_models import ServedBody
from services.gateway.api.thoughts import thoughts_of
from services.gateway.api.tool_calls.models import MAX_TOOLS, NamedFunction, WithTools
from services.gateway.api.tool_calls.use import CallRules, ToolUse
from shared.text import TextModel


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


# Blocks of an earlier reply of another model: thoughts, and tools that its server ran or was to add, and their files
LEFT_OUT = re.compile("(redacted_)?thinking|(server|mcp)_tool_use|[a-z_]+_tool_result|tool_addition|container_upload")
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
Content = Annotated[str | Annotated[list[Block], Field(fail_fast=True)], BeforeValidator(without_documents)]


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
        """The turns of a chat with these blocks: the results of calls, then the text and the calls."""
        if isinstance(self.content, str):
            return [turn(self.role, self.content)]
        results = [block for block in self.content if isinstance(block, ResultBlock)]
        turns: list[Turn] = [turn("tool", joined(each.content), result_of=each.tool_use_id) for each in results]
        calls = [call(block.id, block.name, block.input) for block in self.content if isinstance(block, CallBlock)]
        texts = [block.text for block in self.content if isinstance(block, TextPart)]
        if texts or calls or not turns:
            turns.append(turn(self.role, "\n".join(texts), calls))
        return turns


class OutputOptions(Lenient):
    effort: str | None = None
    format: ResponseFormat | None = None


def without_billing(system: Any) -> Any:
    """Drop that block: it would make each prompt begin differently, so that no prefix cache could be used."""
    if not isinstance(system, list):
        return system
    return [part for part in system if not (isinstance(part, dict) and str(part.get("text")).startswith(BILLING_START))]


class Thinking(Lenient):
    """Whether the model thinks before its answer, where its chat template has a variable for it."""

    type: str
    budget_tokens: int | None = None  # this and the next: accepted, without effect but for `omitted`
    display: str | None = None

    @property
    def is_on(self) -> bool:
        return self.type != "disabled"


class ConversationBody(OfModel, WithTools):
    messages: Annotated[list[MessageTurn], Field(min_length=1, fail_fast=True)]
    system: Annotated[TextOrParts | None, BeforeValidator(without_billing)] = None
    tools: MessageTools | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None

    @field_validator("messages")
    @classmethod
    def _require_question(cls, messages: list[MessageTurn]) -> list[MessageTurn]:
        spoken = [message.role for message in messages if message.role != "system"]
        if spoken[-1:] != ["user"]:
            raise unsupported("must end with a message of the user: the model does not continue a given reply")
        return messages

    @property
    def rules(self) -> CallRules:
        if (choice := self.tool_choice) is None:
            return CallRules()
        mode = "required" if choice.type in {"any", "tool"} else choice.type
        return CallRules(mode, choice.name, not choice.disable_parallel_tool_use)

    @property
    def template_options(self) -> dict[str, bool]:
        """The variables of the chat template that the body sets."""
        return {} if self.thinking is None else {"enable_thinking": self.thinking.is_on}

    def unread(self, text: TextModel) -> list[str]:
        """The fields without effect on this model."""
        asks_for_thoughts = self.thinking is not None and self.thinking.is_on
        return ["thinking"] if asks_for_thoughts and thoughts_of(text.tool_template) is None else []

    def chat(self, tools: ToolUse) -> Chat:
        system = [turn("system", text)] if (text := joined(self.system)) else []
        turns = [*system, *(each for message in self.messages for each in message.turns())]
        return tools.chat(turns, options=self.template_options)


class CountTokensBody(ConversationBody):
    """POST /v1/messages/count_tokens."""


class MessageBody(ConversationBody, ServedBody):
    """POST /v1/messages."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_IN_OTHER_FORMS
    effort_field: ClassVar[str] = "output_config.effort"

    max_tokens: MaxTokens
    stop_sequences: StopStrings | None = None
    output_config: OutputOptions | None = None
    output_format: ResponseFormat | None = None  # the earlier place of the format
    service_tier: Annotated[
        str | None, BeforeValidator(lambda tier: "auto" if tier == "standard_only" else tier)  # both are neutral
    ] = None

    async def wanted(self, planner: BodyPlanner) -> WantedCompletion:
        text, thinking = planner.text, self.thinking
        in_config = self.output_config.format if self.output_config is not None else None
        formats = {"output_config.format": in_config, "output_format": self.output_format}
        forms = [form for name, given in formats.items() if given is not None for form in given.forms(name)]
        tools = self.tool_use(text, self.template_options, thinks=not forms)
        shows_thought = thinking is not None and thinking.is_on and thinking.display != "omitted"
        return WantedCompletion(
            prompts=[self.chat(tools)],
            prompt_field="messages",
            limit=("max_tokens", self.max_tokens),
            passed=self.passed(),
            tools=tools,
            replies=lambda request_id, _: MessageReplies(
                text.card.name, request_id, tools, shows_thought=shows_thought
            ),
            stop=self.stop_sequences or (),
            forms=forms,
            left_out=self.unread(text),
        )
