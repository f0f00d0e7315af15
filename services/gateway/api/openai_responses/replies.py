"""Replies in the form of OpenAI's Responses API, whole and as the events of a stream. Pure."""

from collections.abc import Sequence
from itertools import count

from services.gateway.api.errors import ApiError
from services.gateway.api.openai_responses.body import ResponseBody
from services.gateway.api.replies import Json, Replies, cached_tokens, serving, with_alternatives
from services.gateway.api.text_stream import Decode
from services.gateway.api.token_logprobs import TokenLogprob, TokenLogprobs
from shared.messages.requests import FinishReason, Outcome

ID_PREFIX = "resp_"
_ITEM: Json = {"output_index": 0}
_PART: Json = {"output_index": 0, "content_index": 0}
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}  # by status; others are `server_error`


class ResponseReplies(Replies):
    """Builds the reply to one body; its output is one message with one part of text."""

    ends_with_done = False

    def __init__(self, body: ResponseBody, request_id: str, created_s: float, decode: Decode) -> None:
        self._decode, self._wants_logprobs, self._alternatives = decode, body.wants_logprobs, body.top_logprobs or 0
        self._numbers = count()
        self._item_id = f"msg_{request_id}"
        effort = body.effort[1]
        self._head: Json = {
            "id": ID_PREFIX + request_id,
            "object": "response",
            "created_at": int(created_s),
            "model": body.model,
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": bool(body.parallel_tool_calls),
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": effort, "summary": None},
            "service_tier": "default" if body.service_tier in (None, "auto") else body.service_tier,
            "store": bool(body.store),
            "temperature": body.temperature or 0.0,
            "text": {"format": body.text_format},
            "tool_choice": body.tool_choice or "auto",
            "tools": [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    def whole(self, outcomes: Sequence[Outcome]) -> Json:
        [outcome] = outcomes
        is_cut = outcome.finish_reason is FinishReason.LENGTH
        incomplete = {"incomplete_details": {"reason": "max_output_tokens"}} if is_cut else {}
        usage = {
            "input_tokens": outcome.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens(outcome), "cache_write_tokens": 0},
            "output_tokens": outcome.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": outcome.prompt_tokens + outcome.completion_tokens,
        }
        output, served = [self._message(outcome)], serving(outcome)
        return self._response(_status(outcome), output=output, usage=usage, dilaserve=served, **incomplete)

    def opening(self, index: int, prompt_tokens: int) -> list[Json]:  # noqa: ARG002
        response = self._response("in_progress")
        item = {"id": self._item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", item=item, **_ITEM),
            self._event("response.content_part.added", item_id=self._item_id, part=_part(""), **_PART),
        ]

    def text(
        self,
        index: int,  # noqa: ARG002
        text: str,
        prompt_tokens: int,  # noqa: ARG002
        completion_tokens: int,  # noqa: ARG002
        tokens: Sequence[TokenLogprob] = (),
    ) -> list[Json]:
        logprobs = with_alternatives(tokens)
        return [
            self._event("response.output_text.delta", item_id=self._item_id, delta=text, logprobs=logprobs, **_PART)
        ]

    def ending(self, index: int, outcome: Outcome) -> list[Json]:  # noqa: ARG002
        part, status = self._output_part(outcome), _status(outcome)
        done = {"item_id": self._item_id, "text": outcome.text, "logprobs": part["logprobs"]}
        return [
            self._event("response.output_text.done", **done, **_PART),
            self._event("response.content_part.done", item_id=self._item_id, part=part, **_PART),
            self._event("response.output_item.done", item=self._message(outcome), **_ITEM),
            self._event(f"response.{status}", response=self.whole([outcome])),
        ]

    def last(self, outcomes: Sequence[Outcome]) -> list[Json]:  # noqa: ARG002
        return []

    def failed(self, error: ApiError) -> list[Json]:
        reason = {"code": _ERROR_CODES.get(error.status, "server_error"), "message": error.message}
        return [self._event("response.failed", response=self._response("failed", error=reason))]

    def _event(self, kind: str, **fields: object) -> Json:
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _response(self, status: str, **fields: object) -> Json:
        unset: Json = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._head, "status": status, **unset, **fields}

    def _message(self, outcome: Outcome) -> Json:
        return {
            "id": self._item_id,
            "type": "message",
            "status": _status(outcome),
            "role": "assistant",
            "content": [self._output_part(outcome)],
        }

    def _output_part(self, outcome: Outcome) -> Json:
        wanted = self._wants_logprobs
        tokens = TokenLogprobs(self._decode, self._alternatives).finish(outcome) if wanted else ()
        return _part(outcome.text, tokens)


def _part(text: str, tokens: Sequence[TokenLogprob] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": with_alternatives(tokens)}


def _status(outcome: Outcome) -> str:
    return "incomplete" if outcome.finish_reason is FinishReason.LENGTH else "completed"
