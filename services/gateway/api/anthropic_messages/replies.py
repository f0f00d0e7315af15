"""Replies and errors in the form of Anthropic's Messages API, whole and as the events of a stream, and their models.

Pure. The models are in the OpenAPI document only.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Literal

from pydantic import Field
from pydantic_core import from_json

from services.gateway.api.replies_and_chunks import Json, StreamedReplies, Used, cached_tokens, call_id, serving
from services.gateway.api.response_models import Serving
from services.gateway.api.token_logprobs import TokenLogprob
from services.gateway.api.tool_calls.call_text import CallStream, NewPart, NewThought
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.errors import ApiError
from services.gateway.view_models import ResponseModel
from shared.messages.requests import FinishReason, Outcome


class TextBlock(ResponseModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(ResponseModel):
    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class CallOfTool(ResponseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(ResponseModel):
    """Units: tokens."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class MessageObject(ResponseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingBlock | TextBlock | CallOfTool]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    dilaserve: Serving


class TokenCount(ResponseModel):
    input_tokens: int


class MessageErrorDetail(ResponseModel):
    type: str
    message: str
    param: str | None
    code: str | None
    details: dict[str, Any] | None = Field(None, description="with a `thread`: that the server has no threads")


class MessageErrorBody(ResponseModel):
    """The body of every error of these paths."""

    type: Literal["error"]
    error: MessageErrorDetail


ID_PREFIX = "msg_"
_TYPE_OF_STATUS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_NO_TEXT: Json = {"type": "text", "text": ""}


class MessageReplies(StreamedReplies):
    """Builds the reply to one body: a message with a block for each call of a tool and each text around them, after
    that of the thought if the client wants it."""

    def __init__(self, model: str, request_id: str, tools: ToolUse, *, shows_thought: bool = False) -> None:
        self._head: Json = {"id": ID_PREFIX + request_id, "type": "message", "role": "assistant", "model": model}
        self._request_id, self._tools, self._shows_thought = request_id, tools, shows_thought
        self._stream = CallStream(tools.read)
        self._blocks: list[str] = []  # types of the streamed blocks, of which the last is open

    def whole(self, outcomes: Sequence[Outcome]) -> Json:
        [outcome] = outcomes
        read = self._tools.read(outcome.text, True)
        number = count()
        blocks = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else self._call(next(number), part.name) | {"input": arguments_so_far(part.arguments)}
            for part in read.parts
        ]
        if read.thought and self._shows_thought:
            blocks.insert(0, _thinking(read.thought))
        usage = _usage(outcome.prompt_tokens, cached_tokens(outcome), outcome.completion_tokens)
        stop = _stop(outcome, bool(read.calls))
        return {**self._head, "content": blocks or [_NO_TEXT], **stop, "usage": usage, "dilaserve": serving(outcome)}

    def opening(self, index: int, prompt_tokens: int) -> list[Json]:
        """The block of text begins at once, unless a thought or calls may take its place."""
        open_message: Json = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prompt_tokens, 0, 0),
        }
        is_first = not (self._tools.tools or (self._tools.thoughts and self._shows_thought))
        block = self._begin(_NO_TEXT) if is_first else []
        return [{"type": "message_start", "message": {**self._head, **open_message}}, *block, {"type": "ping"}]

    def text(self, index: int, text: str, used: Used, tokens: Sequence[TokenLogprob] = ()) -> list[Json]:
        return self._deltas(self._stream.add(text))

    def ending(self, index: int, outcome: Outcome) -> list[Json]:
        rest = self._deltas(self._stream.add("", is_last=True))
        block = [] if self._blocks else self._begin(_NO_TEXT)
        usage = _usage(outcome.prompt_tokens, cached_tokens(outcome), outcome.completion_tokens)
        stop = _stop(outcome, self._stream.has_calls)
        return [
            *rest,
            *block,
            *self._end(),
            {"type": "message_delta", "delta": stop, "usage": usage, "dilaserve": serving(outcome)},
            {"type": "message_stop"},
        ]

    def _deltas(self, new: Sequence[NewThought | str | NewPart]) -> list[Json]:
        events: list[Json] = []
        for part in new:
            if isinstance(part, NewThought):
                if self._shows_thought:
                    events += [] if self._blocks else self._begin(_thinking(""))
                    events.append(self._delta({"type": "thinking_delta", "thinking": part.text}))
                continue
            if isinstance(part, str):
                events += [] if self._blocks[-1:] == ["text"] else self._begin(_NO_TEXT)
                events.append(self._delta({"type": "text_delta", "text": part}))
                continue
            if part.name is not None:
                events += self._begin(self._call(part.index, part.name) | {"input": {}})
            if part.arguments:
                events.append(self._delta({"type": "input_json_delta", "partial_json": part.arguments}))
        return events

    def _begin(self, block: Json) -> list[Json]:
        """End the open block and begin another one."""
        ended = self._end()
        self._blocks.append(block["type"])
        return [*ended, {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block}]

    def _end(self) -> list[Json]:
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}] if self._blocks else []

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _call(self, at: int, name: str) -> Json:
        return {"type": "tool_use", "id": call_id(self._request_id, 0, at), "name": name}

    def failed(self, error: ApiError) -> list[Json]:
        return [error_body(error)]


def _thinking(thought: str) -> Json:
    return {"type": "thinking", "thinking": thought, "signature": ""}


def _usage(prompt_tokens: int, cached: int, output_tokens: int) -> Json:
    """`cached`: the tokens of the prompt that a prefix cache had; Anthropic's `input_tokens` are the others."""
    return {
        "input_tokens": prompt_tokens - cached,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def arguments_so_far(arguments: str) -> Json:
    """The arguments of a call, as far as they are complete and valid."""
    try:
        read: Json = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return read


def _stop(outcome: Outcome, has_calls: bool) -> Json:
    if outcome.finish_reason is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(outcome.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": outcome.stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def error_body(error: ApiError) -> Json:
    """{"type": "error", "error": {"type", "message"}}; `param` and `code` as in OpenAI's form."""
    kind = _TYPE_OF_STATUS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    body: Json = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    if error.param == "thread":  # by which Anthropic's clients continue without threads
        body["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": body}
