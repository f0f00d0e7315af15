"""The body of POST /v1/responses. A chat completion answers it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from services.gateway.api.base_models import Lenient, unsupported, wrong_field
from services.gateway.api.openai_responses.tools import FunctionChoice, ResponseTool, ResponseToolChoice
from services.gateway.api.other_fields import NEUTRAL_IN_OTHER_FORMS
from services.gateway.api.request_models import (
    ChatBody,
    ContentPart,
    MetadataKey,
    MetadataValue,
    ServedBody,
    check_parts,
    joined,
)
from services.gateway.api.tool_calls.models import MAX_TOOLS
from shared.messages.requests import MAX_TOP_LOGPROBS

LOGPROBS = "message.output_text.logprobs"  # of `include`
MAX_ID_LENGTH = 100  # characters
PART_KINDS = ("input_text", "output_text", "text")


class InputPart(ContentPart):
    type: Literal["input_text", "output_text", "text"]
    annotations: list[Any] | None = None  # this and the next of an earlier reply: accepted, not used
    logprobs: list[Any] | None = None


TextOrInputParts = Annotated[str | list[InputPart], BeforeValidator(lambda content: check_parts(content, PART_KINDS))]
REQUIRED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}


class InputItem(Lenient):
    """A message, a call of a tool or its result, of the input or of the output of an earlier response."""

    type: Literal["message", "function_call", "function_call_output"] | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None  # of a message
    content: TextOrInputParts | None = None
    call_id: str | None = None  # of a call, and of its result
    name: str | None = None
    arguments: str | None = None
    output: TextOrInputParts | None = None

    @property
    def kind(self) -> str:
        return self.type or "message"

    @model_validator(mode="after")
    def _require_fields(self) -> Self:
        missing = next((name for name in REQUIRED[self.kind] if getattr(self, name) is None), None)
        if missing is not None:
            raise wrong_field(missing, f"is required in an item of the type {self.kind}")
        return self


def _as_messages(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _refuse_stored(value: Any) -> Any:
    if value is not None:
        raise unsupported("is not supported; send the earlier messages in input, or use previous_response_id")
    return value


class ResponseTextFormat(Lenient):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    description: str | None = None

    def of_chat(self) -> dict[str, Any]:
        """As a chat completion has it."""
        schema = {"json_schema": {"schema": self.schema_}} if self.schema_ is not None else {}
        return {"type": self.type, **schema}

    @model_validator(mode="after")
    def _require_schema(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            text = "schema is required with type json_schema, and only allowed there"
            raise PydanticCustomError("unsupported_field", "{text}", {"name": "schema", "text": text})
        return self


class TextOptions(Lenient):
    format: ResponseTextFormat | None = None


class ReasoningOptions(Lenient):
    effort: str | None = None


class ResponseStreamOptions(Lenient):
    include_obfuscation: Literal[False] | None = None


class ResponseBody(ServedBody):
    """POST /v1/responses."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_IN_OTHER_FORMS

    input: Annotated[
        list[InputItem],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(_as_messages, json_schema_input_type=str | list[InputItem]),
    ]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None  # false: not even if the responses of its key are stored
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None  # alternatives of each token
    previous_response_id: Annotated[str, Field(max_length=MAX_ID_LENGTH)] | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ResponseToolChoice | None = None  # None: auto
    parallel_tool_calls: bool | None = None  # false: at most one call

    # Accepted only with values that have no effect
    conversation: Annotated[None, BeforeValidator(_refuse_stored)] = None
    background: Literal[False] | None = None
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    prompt: None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["disabled"] | None = None

    @property
    def effort(self) -> tuple[str, str | None]:
        return "reasoning.effort", self.reasoning.effort if self.reasoning else None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @model_validator(mode="after")
    def _require_logprobs(self) -> Self:
        if self.top_logprobs and not self.wants_logprobs:
            text = f"top_logprobs is only allowed with include: [{LOGPROBS!r}]"
            raise PydanticCustomError("unsupported_field", "{text}", {"name": "top_logprobs", "text": text})
        return self

    @property
    def text_format(self) -> dict[str, Any]:
        """The form of the text, as the client gave it."""
        given = self.text.format if self.text else None
        return given.model_dump(by_alias=True, exclude_none=True) if given else {"type": "text"}

    def completion(self) -> "ResponseChat":
        """The chat with the instructions as its first message."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        choice = self.tool_choice
        tools = {
            "tools": [tool.of_chat() for tool in self.tools or ()],
            "tool_choice": choice.of_chat() if isinstance(choice, FunctionChoice) else choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }
        shared = {name: getattr(self, name) for name in ServedBody.model_fields}
        form = self.text.format.of_chat() if self.text and self.text.format else None
        logprobs = {"logprobs": self.wants_logprobs, "top_logprobs": self.top_logprobs}
        return ResponseChat.model_validate(
            {
                **shared,
                **logprobs,
                **tools,
                "messages": system + chat_messages(self.input),
                "max_tokens": self.max_output_tokens,
                "response_format": form,
            }
        )


def chat_messages(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """The messages of a chat. A call belongs to the message of the assistant before it."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item.kind:
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                function = {"name": item.name, "arguments": item.arguments}
                calls = messages[-1].setdefault("tool_calls", [])
                calls.append({"id": item.call_id, "type": "function", "function": function})
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": joined(item.output)})
            case _:
                messages.append({"role": item.role, "content": joined(item.content)})
    return messages


class ResponseChat(ChatBody):
    """The chat completion of a response; errors and headers name the response's fields."""

    prompt_field: ClassVar[str] = "input"
    form_field: ClassVar[str] = "text.format"
    parameters_field: ClassVar[str] = "tools[{}].parameters"

    @property
    def limit(self) -> tuple[str, int | None]:
        return "max_output_tokens", self.max_tokens
