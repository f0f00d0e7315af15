"""Replies as OpenAI shapes them, for chat and for plain completions, whole and in chunks. Pure."""

from typing import Any, Protocol

from shared.messages.requests import FinishReason, Outcome

Json = dict[str, Any]


class ReplyFormat(Protocol):
    """What differs between the kinds of completion."""

    id_prefix: str
    whole: str  # `object` of a whole reply
    chunk: str  # `object` of a chunk

    def choice(self, text: str, finish_reason: FinishReason | None) -> Json:
        """The choice of a whole reply."""

    def delta(self, text: str, finish_reason: FinishReason | None) -> Json:
        """The choice of a chunk."""

    def opening(self) -> list[Json]:
        """The choice of the chunk that comes before any text, if the kind has one."""


class ChatFormat:
    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def choice(self, text: str, finish_reason: FinishReason | None) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}

    def delta(self, text: str, finish_reason: FinishReason | None) -> Json:
        delta = {"content": text} if text else {}
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def opening(self) -> list[Json]:
        return [self.delta("", None) | {"delta": {"role": "assistant", "content": ""}}]


class TextFormat:
    id_prefix = "cmpl-"
    whole = chunk = "text_completion"

    def choice(self, text: str, finish_reason: FinishReason | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}

    def delta(self, text: str, finish_reason: FinishReason | None) -> Json:
        return self.choice(text, finish_reason)

    def opening(self) -> list[Json]:
        return []


class Replies:
    """Writes the replies to one request."""

    def __init__(
        self, form: ReplyFormat, model: str, request_id: str, created_s: float, *, include_usage: bool
    ) -> None:
        """`include_usage` is about streams; a whole reply always says it."""
        self._form = form
        self._include_usage = include_usage
        self._head: Json = {"id": form.id_prefix + request_id, "created": int(created_s), "model": model}

    def whole(self, outcome: Outcome) -> Json:
        return {
            **self._head,
            "object": self._form.whole,
            "choices": [self._form.choice(outcome.text, outcome.finish_reason)],
            "usage": usage(outcome),
            "dilaserve": serving(outcome),
        }

    def opening(self) -> list[Json]:
        return [self._chunk([choice]) for choice in self._form.opening()]

    def text(self, text: str, used: Json | None = None) -> Json:
        """A piece of the text; `used` is the usage so far, where that is wanted."""
        chunk = self._chunk([self._form.delta(text, None)])
        return chunk if used is None else chunk | {"usage": used}

    def last(self, outcome: Outcome) -> list[Json]:
        """The chunk that ends the text and, if it was asked for, the one with the usage."""
        ending = self._chunk([self._form.delta("", outcome.finish_reason)])
        chunks = [ending | {"dilaserve": serving(outcome)}]
        if self._include_usage:
            chunks.append(self._chunk([]) | {"usage": usage(outcome), "dilaserve": serving(outcome)})
        return chunks

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = {**self._head, "object": self._form.chunk, "choices": choices}
        return chunk | {"usage": None} if self._include_usage else chunk


def usage(outcome: Outcome) -> Json:
    """Units: tokens."""
    return used_tokens(outcome.prompt_tokens, outcome.completion_tokens)


def used_tokens(prompt: int, completion: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def serving(outcome: Outcome) -> Json:
    """How the request was served, in the `dilaserve` object of every reply."""
    told: Json = {"request_id": outcome.request_id, "output_tokens": outcome.output_tokens}
    if outcome.stats is None:
        return told
    stats = outcome.stats
    return told | {
        "steps": stats.steps,
        "recompute_steps": stats.recompute_steps,
        "mean_threshold": stats.mean_threshold,
        "min_threshold": stats.min_threshold,
        "slo_ms": round(stats.slo_s * 1000, 3),
        "latency_ms": round(stats.latency_s * 1000, 3),
        "step_ms": round(stats.step_s * 1000, 3),
        "slo_met": stats.slo_met,
        "instances": stats.instances,
        "migrations": stats.migrations,
    }
