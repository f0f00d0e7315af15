"""Replies in the form of Anthropic's Messages API, whole and as the events of a stream. Pure."""

from collections.abc import Sequence

from services.gateway.api.anthropic_messages.body import MessageBody
from services.gateway.api.anthropic_messages.errors import error_body
from services.gateway.api.errors import ApiError
from services.gateway.api.replies import Json, Replies, cached_tokens, serving
from services.gateway.api.token_logprobs import TokenLogprob
from shared.messages.requests import FinishReason, Outcome

ID_PREFIX = "msg_"


class MessageReplies(Replies):
    """Builds the reply to one body: a message with one block of text."""

    ends_with_done = False

    def __init__(self, body: MessageBody, request_id: str) -> None:
        self._head: Json = {"id": ID_PREFIX + request_id, "type": "message", "role": "assistant", "model": body.model}

    def whole(self, outcomes: Sequence[Outcome]) -> Json:
        [outcome] = outcomes
        content = [{"type": "text", "text": outcome.text}]
        usage = _usage(outcome.prompt_tokens, cached_tokens(outcome), outcome.completion_tokens)
        return {**self._head, "content": content, **_stop(outcome), "usage": usage, "dilaserve": serving(outcome)}

    def opening(self, index: int, prompt_tokens: int) -> list[Json]:
        open_message: Json = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prompt_tokens, 0, 0),
        }
        return [
            {"type": "message_start", "message": {**self._head, **open_message}},
            {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
        ]

    def text(
        self,
        index: int,
        text: str,
        prompt_tokens: int,  # noqa: ARG002
        completion_tokens: int,  # noqa: ARG002
        tokens: Sequence[TokenLogprob] = (),  # noqa: ARG002
    ) -> list[Json]:
        return [{"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}]

    def ending(self, index: int, outcome: Outcome) -> list[Json]:
        usage = _usage(outcome.prompt_tokens, cached_tokens(outcome), outcome.completion_tokens)
        return [
            {"type": "content_block_stop", "index": index},
            {"type": "message_delta", "delta": _stop(outcome), "usage": usage, "dilaserve": serving(outcome)},
            {"type": "message_stop"},
        ]

    def last(self, outcomes: Sequence[Outcome]) -> list[Json]:  # noqa: ARG002
        return []

    def failed(self, error: ApiError) -> list[Json]:
        return [error_body(error)]


def _usage(prompt_tokens: int, cached: int, output_tokens: int) -> Json:
    """`cached`: the tokens of the prompt that a prefix cache had; Anthropic's `input_tokens` are the others."""
    return {
        "input_tokens": prompt_tokens - cached,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _stop(outcome: Outcome) -> Json:
    if outcome.finish_reason is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(outcome.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": outcome.stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}
