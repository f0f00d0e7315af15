"""Replies in OpenAI's format, for chat and for plain completions, whole and in chunks. Pure."""

from typing import Any

from services.gateway.api.request_models import ChatBody, CompletionBody, StreamOptions
from services.gateway.api.response_models import Serving
from shared.messages.requests import FinishReason, Outcome

Json = dict[str, Any]


class TextFormat:
    """A plain completion."""

    id_prefix = "cmpl-"
    whole = "text_completion"  # `object` of a whole reply
    chunk = "text_completion"  # `object` of a chunk

    def choice(self, text: str, finish_reason: FinishReason | None) -> Json:
        """The choice of a whole reply."""
        return _choice(finish_reason, text=text)

    def delta(self, text: str, finish_reason: FinishReason | None) -> Json:
        """The choice of a chunk."""
        return self.choice(text, finish_reason)

    def opening(self) -> list[Json]:
        """The choices of the chunks before any text."""
        return []


class ChatFormat(TextFormat):
    """A chat completion."""

    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def choice(self, text: str, finish_reason: FinishReason | None) -> Json:
        return _choice(finish_reason, message={"role": "assistant", "content": text, "refusal": None})

    def delta(self, text: str, finish_reason: FinishReason | None) -> Json:
        return _choice(finish_reason, delta={"content": text} if text else {})

    def opening(self) -> list[Json]:
        return [_choice(None, delta={"role": "assistant", "content": ""})]


def _choice(finish_reason: FinishReason | None, **content: Any) -> Json:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}


class Replies:
    """Builds the reply to one request."""

    def __init__(self, body: CompletionBody, request_id: str, created_s: float) -> None:
        self._format = ChatFormat() if isinstance(body, ChatBody) else TextFormat()
        self._options = body.stream_options or StreamOptions()
        self._head: Json = {"id": self._format.id_prefix + request_id, "created": int(created_s), "model": body.model}

    def whole(self, outcome: Outcome) -> Json:
        return {
            **self._head,
            "object": self._format.whole,
            "choices": [self._format.choice(outcome.text, outcome.finish_reason)],
            "usage": usage(outcome.prompt_tokens, outcome.completion_tokens),
            "dilaserve": Serving.of(outcome).model_dump(exclude_unset=True),
        }

    def opening(self) -> list[Json]:
        return [self._chunk([choice]) for choice in self._format.opening()]

    def text(self, text: str, prompt_tokens: int, completion_tokens: int) -> Json:
        """A chunk of text, with the usage so far if the client wants it."""
        chunk = self._chunk([self._format.delta(text, None)])
        if self._options.continuous_usage_stats:
            chunk["usage"] = usage(prompt_tokens, completion_tokens)
        return chunk

    def last(self, outcome: Outcome) -> list[Json]:
        """The chunk that ends the text and, if the client wants it, the chunk with the usage."""
        ending = self._chunk([self._format.delta("", outcome.finish_reason)])
        serving = Serving.of(outcome).model_dump(exclude_unset=True)
        chunks = [ending | {"dilaserve": serving}]
        if self._options.include_usage:
            total = usage(outcome.prompt_tokens, outcome.completion_tokens)
            chunks.append(self._chunk([]) | {"usage": total, "dilaserve": serving})
        return chunks

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = {**self._head, "object": self._format.chunk, "choices": choices}
        return chunk | {"usage": None} if self._options.include_usage else chunk


def usage(prompt_tokens: int, completion_tokens: int) -> Json:
    total_tokens = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total_tokens}
