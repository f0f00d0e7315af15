"""Replies in the form of OpenAI's Responses API, whole and as the events of a stream, and their models.

Pure. The models are in the OpenAPI document only.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any, Literal

from pydantic import Field

from services.gateway.api.replies_and_chunks import (
    Json,
    StreamedReplies,
    Used,
    cached_tokens,
    call_id,
    serving,
    with_alternatives,
)
from services.gateway.api.response_models import ReplyToken, Serving
from services.gateway.api.token_logprobs import TokenLogprob, TokenLogprobs
from services.gateway.api.tool_calls.call_text import Call, CallStream, NewPart, NewThought
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.errors import ApiError
from services.gateway.stores.conversations import ID_PREFIX
from services.gateway.view_models import ResponseModel
from shared.messages.requests import FinishReason, Outcome
from shared.text import TextModel


class OutputText(ResponseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[None]
    logprobs: list[ReplyToken]


class ReasoningText(ResponseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(ResponseModel):
    """The model's thought before its answer."""

    id: str
    type: Literal["reasoning"]
    status: Literal["completed", "incomplete"]
    summary: list[None]
    content: list[ReasoningText]


class OutputMessage(ResponseModel):
    id: str
    type: Literal["message"]
    status: Literal["completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(ResponseModel):
    id: str
    type: Literal["function_call"]
    status: Literal["completed", "incomplete"]
    call_id: str
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class IncompleteDetails(ResponseModel):
    reason: Literal["max_output_tokens"]


class ResponseUsage(ResponseModel):
    """Units: tokens."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseObject(ResponseModel):
    """A reply; the fields of the body come back as they were applied. Open Responses requires all but `user`."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time, seconds")
    completed_at: int | None = Field(description="Unix time, seconds; null: incomplete")
    status: Literal["completed", "incomplete"]
    model: str
    background: Literal[False]
    error: None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    output: list[OutputReasoning | OutputMessage | OutputCall]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: None
    reasoning: dict[str, str | None]
    safety_identifier: None
    service_tier: str
    store: bool = Field(description="whether `previous_response_id` can name this response")
    temperature: float
    text: dict[str, Any]
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage
    user: str | None
    dilaserve: Serving


THOUGHT = "thought"  # the place of the thought among the items
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}  # by status; others are `server_error`


class ResponseReplies(StreamedReplies):
    """Builds the reply to one body; its output is a message with one part of text, calls of tools, or both, as they
    begin in the text, after the thought."""

    def __init__(self, head: Json, request_id: str, text: TextModel, tools: ToolUse, alternatives: int | None) -> None:
        """`head`: the fields of the reply that the body gives. `alternatives`: of each token, with its log-probability;
        None: no log-probabilities."""
        self._text, self._alternatives = text, alternatives
        self._numbers = count()
        self._request_id, self._item_id, self._thought_id = request_id, f"msg_{request_id}", f"rs_{request_id}"
        self._tools, self._stream = tools, CallStream(tools.read)
        self._places: list[int | str | None] = []  # streamed items: calls by number, None: the message, and THOUGHT
        self._tokens: list[TokenLogprob] = []  # those not sent yet
        self._head = {"id": ID_PREFIX + request_id, **head}

    def whole(self, outcomes: Sequence[Outcome]) -> Json:
        [outcome] = outcomes
        is_cut = outcome.finish_reason is FinishReason.LENGTH
        took_s = round(outcome.stats.latency_s) if outcome.stats else 0
        completed: Json = {"completed_at": self._head["created_at"] + took_s}
        end: Json = {"incomplete_details": {"reason": "max_output_tokens"}} if is_cut else completed
        output = self.output(outcome)
        thoughts = [part["text"] for item in output if item["type"] == "reasoning" for part in item["content"]]
        usage = usage_of(outcomes, sum(map(self._text.count_tokens, thoughts)))
        return self._response(_status(outcome), output=output, usage=usage, dilaserve=serving(outcome), **end)

    def output(self, outcome: Outcome) -> list[Json]:
        """The items of the reply."""
        read, status = self._tools.read(outcome.text, True), _status(outcome)
        items, numbers = dict[int | str | None, Json](), count()  # by place, as in `_places`
        if read.thought:
            items[THOUGHT] = self._thought(read.thought, status)
        for part in read.parts or ("",):
            if isinstance(part, Call):
                number = next(numbers)
                items[number] = self._call(number, part.name, part.arguments, status)
            elif None not in items:
                items[None] = self._message(outcome, read.content)
        return list(items.values())

    def opening(self, index: int, prompt_tokens: int) -> list[Json]:
        """The message begins at once, unless a thought or calls may take its place."""
        response = self._response("in_progress")
        started = [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]
        return started if self._tools.tools or self._tools.thoughts else started + self._begin_message()

    def text(self, index: int, text: str, used: Used, tokens: Sequence[TokenLogprob] = ()) -> list[Json]:
        self._tokens += tokens
        return self._deltas(self._stream.add(text))

    def ending(self, index: int, outcome: Outcome) -> list[Json]:
        rest = self._stream.add("", is_last=True)
        is_empty = all(place == THOUGHT for place in self._places) and all(isinstance(new, NewThought) for new in rest)
        events = self._deltas(rest)
        events += [*self._begin_message(), *self._deltas([])] if is_empty else []
        whole = self.whole([outcome])
        for place, item in enumerate(whole["output"]):
            if item["type"] == "function_call":
                done = {"item_id": item["id"], "name": item["name"], "arguments": item["arguments"]}
                done["output_index"] = place
                events.append(self._event("response.function_call_arguments.done", **done))
            else:
                [part] = item["content"]
                at = {"item_id": item["id"], "output_index": place, "content_index": 0}
                done = {name: value for name, value in part.items() if name in {"text", "logprobs"}}
                events.append(self._event(f"response.{part['type']}.done", **done, **at))
                events.append(self._event("response.content_part.done", part=part, **at))
            events.append(self._event("response.output_item.done", item=item, output_index=place))
        return [*events, self._event(f"response.{_status(outcome)}", response=whole)]

    def _deltas(self, new: Sequence[NewThought | str | NewPart]) -> list[Json]:
        events: list[Json] = []
        for part in new:
            if isinstance(part, NewThought):
                item = self._thought("", "in_progress") | {"content": []}
                events += [] if self._places else self._begin_with_part(THOUGHT, item, _thought_part(""))
                at = {"item_id": self._thought_id, "output_index": 0, "content_index": 0}
                events.append(self._event("response.reasoning_text.delta", delta=part.text, **at))
                continue
            if isinstance(part, str):
                events += [] if None in self._places else self._begin_message()
                events.append(self._text_delta(part))
                continue
            if part.name is not None:
                events.append(self._begin(part.index, self._call(part.index, part.name, "", "in_progress")))
            if part.arguments:
                place, item_id = self._places.index(part.index), self._call_item_id(part.index)
                more = {"item_id": item_id, "output_index": place, "delta": part.arguments}
                events.append(self._event("response.function_call_arguments.delta", **more))
        if self._tokens and None in self._places:
            events.append(self._text_delta(""))
        return events

    def _text_delta(self, text: str) -> Json:
        """With the tokens not sent yet: those of a withheld text or a call arrive before it."""
        delta = {"item_id": self._item_id, "delta": text, "logprobs": with_alternatives(self._tokens)}
        self._tokens = []
        at = {"output_index": self._places.index(None), "content_index": 0}
        return self._event("response.output_text.delta", **delta, **at)

    def _begin_message(self) -> list[Json]:
        item = {"id": self._item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        return self._begin_with_part(None, item, _part(""))

    def _begin_with_part(self, place: str | None, item: Json, part: Json) -> list[Json]:
        added = self._begin(place, item)
        at = {"item_id": item["id"], "output_index": added["output_index"], "content_index": 0}
        return [added, self._event("response.content_part.added", part=part, **at)]

    def _begin(self, place: int | str | None, item: Json) -> Json:
        self._places.append(place)
        return self._event("response.output_item.added", item=item, output_index=len(self._places) - 1)

    def failed(self, error: ApiError) -> list[Json]:
        reason = {"code": _ERROR_CODES.get(error.status, "server_error"), "message": error.message}
        return [self._event("response.failed", response=self._response("failed", error=reason))]

    def _event(self, kind: str, **fields: object) -> Json:
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _response(self, status: str, **fields: object) -> Json:
        unset: Json = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._head, "status": status, **unset, **fields}

    def _call_item_id(self, number: int) -> str:
        return f"fc_{self._request_id}_{number}"

    def _call(self, number: int, name: str, arguments: str, status: str) -> Json:
        return {
            "id": self._call_item_id(number),
            "type": "function_call",
            "status": status,
            "call_id": call_id(self._request_id, 0, number),
            "name": name,
            "arguments": arguments,
        }

    def _thought(self, thought: str, status: str) -> Json:
        content = [_thought_part(thought)]
        return {"id": self._thought_id, "type": "reasoning", "status": status, "summary": [], "content": content}

    def _message(self, outcome: Outcome, text: str) -> Json:
        alternatives = self._alternatives
        tokens = () if alternatives is None else TokenLogprobs(self._text, alternatives).finish(outcome)
        return {
            "id": self._item_id,
            "type": "message",
            "status": _status(outcome),
            "role": "assistant",
            "content": [_part(text, tokens)],
        }


def usage_of(outcomes: Sequence[Outcome], reasoning_tokens: int = 0) -> Json:
    """The tokens of all prompts and texts, as these APIs name them. `reasoning_tokens`: those of thoughts."""
    prompt_tokens = sum(each.prompt_tokens for each in outcomes)
    completion_tokens = sum(each.completion_tokens for each in outcomes)
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": sum(map(cached_tokens, outcomes)), "cache_write_tokens": 0},
        "output_tokens": completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _thought_part(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}


def _part(text: str, tokens: Sequence[TokenLogprob] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": with_alternatives(tokens)}


def _status(outcome: Outcome) -> str:
    return "incomplete" if outcome.finish_reason is FinishReason.LENGTH else "completed"
