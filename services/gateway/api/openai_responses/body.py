"""The body of POST /v1/responses."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from services.gateway.api.base_models import Lenient, unsupported, unsupported_field, wrong_field
from services.gateway.api.field_types import MaxTokens, Metadata, ResponseFormat, TopLogprobs
from services.gateway.api.openai_responses.replies import ResponseReplies
from services.gateway.api.other_fields import NEUTRAL_IN_OTHER_FORMS, LeftOut, OrLeftOut, leaving_out
from services.gateway.api.plan import BodyPlanner, WantedCompletion
from services.gateway.api.prompts import TextOrParts, Turn, call, joined, turn
from services.gateway.api.request_models import ServedBody
from services.gateway.api.tool_calls.models import LEAVES_OUT_BUILT_IN, MAX_TOOLS, Function, WithToolChoice
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.errors import MAX_NAME_LENGTH, ApiError
from shared.errors import BadInput
from shared.messages.requests import ChatMessage

LOGPROBS = "message.output_text.logprobs"  # of `include`; the others concern outputs that no reply has
INCLUDED = (
    r"^(message\.(output_text\.logprobs|input_image\.image_url)|reasoning\.encrypted_content"
    r"|[a-z_]+_call(_output)?\.[a-z_.]+)$"
)
MAX_ID_LENGTH = 100  # characters
REQUIRED: Mapping[str, Sequence[str]] = {  # by type of an item
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "item_reference": ("id",),
}
ITEM_ID = re.compile(r"(?:msg|rs)_([A-Za-z0-9_-]{1,64})|fc_([A-Za-z0-9_-]{1,64})_[0-9]+")  # with the id of its request
MAX_REFERENCES = 500  # of a body; each may be to another reply, which is read from the bus
# Reasoning, and items of tools that other servers run. Not `compaction`, which represents messages.
LEFT_OUT = leaving_out(
    "reasoning|(?!function_|custom_tool_)[a-z_]+_call(_output)?"
    "|mcp_[a-z_]+|tool_search_output|additional_tools|program(_output)?"
)


ItemType = Literal[
    "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "item_reference"
]


class InputItem(Lenient):
    """A message, a call of a tool or its result, of the input or of the output of an earlier response, or the id of
    such an item. The input of a custom tool is a text; such calls are those of another server."""

    type: ItemType | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None  # of a message
    content: TextOrParts | None = None
    call_id: str | None = None  # of a call, and of its result
    name: str | None = None
    arguments: str | None = None
    input: str | None = None  # of a custom tool
    output: TextOrParts | None = None

    @property
    def kind(self) -> str:
        return self.type or "message"

    @model_validator(mode="after")
    def _require_fields(self) -> Self:
        missing = next((name for name in REQUIRED[self.kind] if getattr(self, name) is None), None)
        if missing is not None:
            raise wrong_field(missing, f"is required in an item of the type {self.kind}")
        return self


AS_MESSAGES = BeforeValidator(
    lambda value: [{"role": "user", "content": value}] if isinstance(value, str) else value,
    json_schema_input_type=str | list[InputItem],
)

InputItems = Annotated[
    list[Annotated[OrLeftOut[InputItem], LEFT_OUT]], Field(min_length=1, fail_fast=True), AS_MESSAGES
]


def _refuse_stored(value: Any) -> Any:
    if value is not None:
        raise unsupported("is not supported; send the earlier messages in input, or use previous_response_id")
    return value


class ResponseTool(Function):
    type: Literal["function"]


class TextOptions(Lenient):
    format: ResponseFormat | None = None


class ReasoningOptions(Lenient):
    effort: str | None = None


class ResponseBody(ServedBody, WithToolChoice):
    """POST /v1/responses."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_IN_OTHER_FORMS
    effort_field: ClassVar[str] = "reasoning.effort"

    input: InputItems
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    metadata: Metadata | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = None  # false: not even if the responses of its key are stored
    top_logprobs: TopLogprobs | None = None  # alternatives of each token
    previous_response_id: Annotated[str, Field(max_length=MAX_ID_LENGTH)] | None = None
    tools: (
        Annotated[
            list[Annotated[OrLeftOut[ResponseTool], LEAVES_OUT_BUILT_IN]], Field(max_length=MAX_TOOLS, fail_fast=True)
        ]
        | None
    ) = None
    include: Annotated[list[Annotated[str, Field(pattern=INCLUDED)]], Field(fail_fast=True)] | None = None
    text: TextOptions | None = None
    conversation: Annotated[None, BeforeValidator(_refuse_stored)] = None

    @property
    def alternatives(self) -> int | None:
        """Of each token; None: no log-probabilities."""
        return self.top_logprobs or 0 if LOGPROBS in (self.include or ()) else None

    @model_validator(mode="after")
    def _require_logprobs(self) -> Self:
        if self.top_logprobs and self.alternatives is None:
            raise unsupported_field("top_logprobs", f"top_logprobs is only allowed with include: [{LOGPROBS!r}]")
        return self

    async def wanted(self, planner: BodyPlanner) -> WantedCompletion:
        forms = self.text.format.forms("text.format") if self.text and self.text.format else ()
        tools = self.tool_use(planner.text, thinks=not forms)
        key, items = planner.key, await self._items(planner)
        if self.previous_response_id is not None:
            items = [*map(_item, await planner.conversations.find(self.previous_response_id, key)), *items]
        system = [turn("system", self.instructions)] if self.instructions else []
        has_calls = any(item.kind.endswith("_call") for item in items)  # which a conversation cannot hold
        is_stored = key.stores_responses and self.store is not False and not has_calls

        async def keep(request_id: str, cell: str) -> None:
            await planner.conversations.keep(request_id, cell, list(map(_message, items)), key)

        def replies(request_id: str, created_s: float) -> ResponseReplies:
            head = self._head(is_stored=is_stored) | {"created_at": int(created_s), "model": planner.text.card.name}
            return ResponseReplies(head, request_id, planner.text, tools, self.alternatives)

        return WantedCompletion(
            prompts=[tools.chat([*system, *turns_of(items)])],
            prompt_field="input",
            limit=("max_output_tokens", self.max_output_tokens),
            passed=self.passed(),
            tools=tools,
            replies=replies,
            keep=keep if is_stored else None,
            forms=forms,
            alternatives=self.alternatives,
        )

    async def _items(self, planner: BodyPlanner) -> list[InputItem]:
        """The items of the input; references are replaced by the items that they name. Raises: as _referenced."""
        items: dict[str, InputItem | LeftOut] = {f"input[{at}].id": item for at, item in enumerate(self.input)}
        named = {field: item for field, item in items.items() if isinstance(item, InputItem)}
        ids = {field: item.id or "" for field, item in named.items() if item.kind == "item_reference"}
        if len(ids) > MAX_REFERENCES:
            raise BadInput(f"input has {len(ids)} item_reference; at most {MAX_REFERENCES}", "input")
        if ids:
            # The tools of earlier replies are not stored; `tool_choice` is about this reply
            tools = self.model_copy(update={"tool_choice": None, "parallel_tool_calls": None}).tool_use(planner.text)
            items |= await _referenced(ids, planner, tools)
        return [item for item in items.values() if not isinstance(item, LeftOut)]

    def _head(self, *, is_stored: bool) -> dict[str, Any]:
        """The fields of the reply that the body gives, as they are applied."""
        given, choice = self.text.format if self.text else None, self.tool_choice
        return {
            "object": "response",
            "background": False,
            "completed_at": None,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "presence_penalty": self.presence_penalty or 0.0,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": None,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None, "summary": None},
            "safety_identifier": None,
            "service_tier": "default" if self.service_tier in (None, "auto") else self.service_tier,
            "store": is_stored,
            "temperature": self.temperature or 0.0,
            "text": {"format": given.model_dump(by_alias=True, exclude_none=True) if given else {"type": "text"}},
            "tool_choice": choice.model_dump(exclude_none=True) if isinstance(choice, BaseModel) else choice or "auto",
            "tools": [tool.model_dump() for tool in self.tools or () if isinstance(tool, ResponseTool)],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }


async def _referenced(ids: Mapping[str, str], planner: BodyPlanner, tools: ToolUse) -> dict[str, InputItem | LeftOut]:
    """The items with these ids, by the fields that name them, from the outcomes of earlier requests of the same key, of
    which each is read once. `tools`: how calls in a text are read; without tools none is.

    Raises: ApiError 404 that names the field of an item that does not exist; RetryLater if the bus does not answer.
    """
    of_request: dict[str, dict[str, Any]] = {}  # the items of each reply, by id
    found: dict[str, InputItem | LeftOut] = {}
    for field, item_id in ids.items():
        match = ITEM_ID.fullmatch(item_id)
        request_id = match[1] or match[2] if match else ""
        if match and request_id not in of_request:
            outcome = await planner.conversations.outcome(request_id, planner.key)
            items = ResponseReplies({}, request_id, planner.text, tools, None).output(outcome) if outcome else []
            of_request[request_id] = {item["id"]: item for item in items}
        item = of_request.get(request_id, {}).get(item_id)
        if item is None:
            reason = "no response of the last day has it, or its call needs the tools"
            advice = "send the item itself, as clients do with store: false"
            message = f"{field}: the item {item_id[:MAX_NAME_LENGTH]!r} is not found: {reason}; {advice}"
            raise ApiError(404, message, param=field, code="not_found")
        found[field] = (LeftOut if item["type"] == "reasoning" else InputItem).model_validate(item)
    return found


def turns_of(items: Sequence[InputItem | LeftOut]) -> list[Turn]:
    """The turns of a chat. A call belongs to the message of the assistant before it."""
    turns: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, LeftOut):
            continue
        match item.kind:
            case "function_call" | "custom_tool_call":
                if not turns or turns[-1]["role"] != "assistant":
                    turns.append(turn("assistant", ""))
                calls = turns[-1].setdefault("tool_calls", [])
                calls.append(call(item.call_id or "", item.name or "", item.arguments or item.input or ""))
            case "function_call_output" | "custom_tool_call_output":
                turns.append(turn("tool", joined(item.output), result_of=item.call_id))
            case _:
                turns.append(turn(item.role or "", joined(item.content)))
    return list(turns)


def _item(message: ChatMessage) -> InputItem:
    """An earlier message, or the result of a call; calls are in the text of their message."""
    if message.role == "tool":
        return InputItem(type="function_call_output", call_id="", output=message.content)
    return InputItem.model_validate({"role": message.role, "content": message.content})


def _message(item: InputItem) -> ChatMessage:
    """An item of a conversation without calls, as it is stored."""
    return ChatMessage(role=item.role or "tool", content=joined(item.content or item.output))
