"""Replies in OpenAI's format, for chat and for plain completions, whole and in chunks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from services.gateway.api.response_models import Serving
from services.gateway.api.token_logprobs import TokenLogprob, TokenLogprobs
from services.gateway.api.tool_calls.call_text import CallStream, NewPart, NewThought
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.errors import ApiError
from shared.messages.requests import FinishReason, Outcome
from shared.text import TextModel

Json = dict[str, Any]
Used = tuple[int, int]  # tokens of the prompt and of the text


class TextFormat:
    """A plain completion."""

    id_prefix = "cmpl-"
    whole = "text_completion"  # `object` of a whole reply
    chunk = "text_completion"  # `object` of a chunk

    def choice(self, index: int, text: str, finish_reason: FinishReason | None) -> Json:
        """A choice of a whole reply, without log-probabilities."""
        return _choice(index, finish_reason, text=text)

    def piece(self, index: int, text: str) -> Json:
        """A choice of a chunk with a piece of text."""
        return self.choice(index, text, None)

    def ending(self, index: int, finish_reason: FinishReason | None) -> list[Json]:
        """The choices of the last chunks."""
        return [self.piece(index, "") | {"finish_reason": finish_reason}]

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> Json:
        wants_top = any(token.alternatives for token in tokens)
        # Of tokens with the same text the most probable stays
        top = [{each.text: each.logprob for each in (token, *reversed(token.alternatives))} for token in tokens]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": top if wants_top else None,
            "text_offset": [token.offset for token in tokens],
        }

    def opening(self, index: int) -> list[Json]:
        """The choices of the chunks before any text."""
        return []


class FimFormat(TextFormat):
    """A completion between a prompt and a suffix: with a text, as Mercury's, and with a message, as Mistral's."""

    def choice(self, index: int, text: str, finish_reason: FinishReason | None) -> Json:
        return _choice(index, finish_reason, text=text, message={"role": "assistant", "content": text})

    def piece(self, index: int, text: str) -> Json:
        return _choice(index, None, text=text, delta={"content": text})


class ChatFormat(TextFormat):
    """A chat completion, which can have a thought and calls of tools."""

    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def __init__(self, tools: ToolUse, request_id: str) -> None:
        self._tools, self._request_id = tools, request_id
        self._streams: dict[int, CallStream] = {}

    def choice(self, index: int, text: str, finish_reason: FinishReason | None) -> Json:
        read = self._tools.read(text, True)
        message: Json = {"role": "assistant", "content": read.content, "refusal": None}
        if read.calls:
            parts = [NewPart(at, call.name, call.arguments) for at, call in enumerate(read.calls)]
            calls = [self._call(index, part) for part in parts]
            message |= {"content": read.content or None, "tool_calls": calls}
        if read.thought:
            message["reasoning_content"] = read.thought
        return _choice(index, self._reason(finish_reason, bool(read.calls)), message=message)

    def piece(self, index: int, text: str) -> Json:
        return self._delta(index, self._stream(index).add(text))

    def ending(self, index: int, finish_reason: FinishReason | None) -> list[Json]:
        rest = self._delta(index, self._stream(index).add("", is_last=True))
        last = _choice(index, self._reason(finish_reason, self._stream(index).has_calls), delta={})
        return [rest, last] if rest["delta"] else [last]

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> Json:
        return {"content": with_alternatives(tokens), "refusal": None}

    def opening(self, index: int) -> list[Json]:
        return [_choice(index, None, delta={"role": "assistant", "content": ""})]

    def _stream(self, index: int) -> CallStream:
        return self._streams.setdefault(index, CallStream(self._tools.read))

    def _delta(self, index: int, new: Sequence[NewThought | str | NewPart]) -> Json:
        content = "".join(part for part in new if isinstance(part, str))
        delta: Json = {"content": content} if content else {}
        if thought := "".join(part.text for part in new if isinstance(part, NewThought)):
            delta["reasoning_content"] = thought
        if parts := [part for part in new if isinstance(part, NewPart)]:
            delta["tool_calls"] = [{"index": part.index, **self._call(index, part)} for part in parts]
        return _choice(index, None, delta=delta)

    def _call(self, index: int, part: NewPart) -> Json:
        """A call, or a further part of one."""
        if part.name is None:
            return {"function": {"arguments": part.arguments}}
        function = {"name": part.name, "arguments": part.arguments}
        return {"id": call_id(self._request_id, index, part.index), "type": "function", "function": function}

    def _reason(self, given: FinishReason | None, has_calls: bool) -> str | None:
        """OpenAI's for calls, but for that of a function that the client has named."""
        is_called = has_calls and given is FinishReason.STOP and not self._tools.is_named
        return "tool_calls" if is_called else given


def call_id(request_id: str, index: int, number: int) -> str:
    """The id of a call of a choice; `request_id`: of the first choice."""
    return f"call_{request_id}_{index}_{number}"


def _choice(index: int, finish_reason: str | None, **content: Any) -> Json:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}


def with_alternatives(tokens: Sequence[TokenLogprob]) -> list[Json]:
    """Each token with its log-probability and its alternatives."""
    return [_token(token) | {"top_logprobs": list(map(_token, token.alternatives))} for token in tokens]


def _token(token: TokenLogprob) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.own_bytes)}


class Replies(Protocol):
    """The reply to one body in one format."""

    def whole(self, outcomes: Sequence[Outcome]) -> Json:
        """`outcomes`: of the choices, in order."""


@runtime_checkable
class StreamedReplies(Replies, Protocol):
    """The reply whole, or as the content of the events of a stream."""

    ends_with_done: bool = False  # whether OpenAI's `[DONE]` ends the stream

    def opening(self, index: int, prompt_tokens: int) -> list[Json]:
        """The contents before the text of a choice."""

    def text(self, index: int, text: str, used: Used, tokens: Sequence[TokenLogprob] = ()) -> list[Json]:
        """The contents for a piece of text. `used`: the choice's usage so far; `tokens`: those with log-probabilities
        that begin in it."""

    def ending(self, index: int, outcome: Outcome) -> list[Json]:
        """The contents that end the text of a choice."""

    def last(self, outcomes: Sequence[Outcome]) -> list[Json]:
        """The contents after the text of all choices."""
        return []

    def failed(self, error: ApiError) -> list[Json]:
        """The contents that end the stream early."""


@dataclass(frozen=True, kw_only=True)
class CompletionReplies(StreamedReplies):
    """Builds the reply to one completion, with one or more choices."""

    ends_with_done = True

    form: TextFormat
    head: Json  # the fields that begin the reply and each chunk
    model: TextModel
    alternatives: int | None  # of each token, with its log-probability; None: no log-probabilities
    echoes: Sequence[str]  # the text before each choice's own, in order
    choices_per_prompt: int
    include_usage: bool
    continuous_usage: bool

    def whole(self, outcomes: Sequence[Outcome]) -> Json:
        choices = [
            self.form.choice(i, echo + each.text, each.finish_reason)
            | self._logprobs(each)
            | {"stop_reason": each.stop_reason}
            for i, (echo, each) in enumerate(zip(self.echoes, outcomes, strict=True))
        ]
        if len(outcomes) > 1:
            choices = [each | {"dilaserve": serving(of)} for each, of in zip(choices, outcomes, strict=True)]
        return {
            **self.head,
            "object": self.form.whole,
            "choices": choices,
            "usage": self._usage(outcomes),
            "dilaserve": serving(outcomes[0]),
        }

    def opening(self, index: int, prompt_tokens: int) -> list[Json]:
        """The last chunk has the prompt, if the client wants it."""
        chunks = [self._chunk([choice]) for choice in self.form.opening(index)]
        echo = self.text(index, self.echoes[index], (prompt_tokens, 0)) if self.echoes[index] else []
        return chunks + echo

    def text(self, index: int, text: str, used: Used, tokens: Sequence[TokenLogprob] = ()) -> list[Json]:
        """Empty if the piece can still become a part of a call."""
        piece = self.form.piece(index, text)
        if piece.get("delta") == {} and not tokens:
            return []
        logprobs = {"logprobs": self.form.logprobs(tokens)} if tokens else {}
        chunk = self._chunk([piece | logprobs])
        if self.continuous_usage:
            chunk["usage"] = usage(*used)
        return [chunk]

    def ending(self, index: int, outcome: Outcome) -> list[Json]:
        *rest, last = self.form.ending(index, outcome.finish_reason)
        ending = self._chunk([last | {"stop_reason": outcome.stop_reason}])
        return [*(self._chunk([choice]) for choice in rest), ending | {"dilaserve": serving(outcome)}]

    def last(self, outcomes: Sequence[Outcome]) -> list[Json]:
        """The chunk with the usage of all choices, if the client wants it."""
        if not self.include_usage:
            return []
        return [self._chunk([]) | {"usage": self._usage(outcomes), "dilaserve": serving(outcomes[0])}]

    def failed(self, error: ApiError) -> list[Json]:
        return [error.body()]

    def _logprobs(self, outcome: Outcome) -> Json:
        if self.alternatives is None:
            return {}
        return {"logprobs": self.form.logprobs(TokenLogprobs(self.model, self.alternatives).finish(outcome))}

    def _usage(self, outcomes: Sequence[Outcome]) -> Json:
        """A prompt counts once, however many choices it has."""
        return usage_of(outcomes[:: self.choices_per_prompt], outcomes)

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = {**self.head, "object": self.form.chunk, "choices": choices}
        return chunk | {"usage": None} if self.include_usage else chunk


def serving(outcome: Outcome) -> Json:
    return Serving.of(outcome).model_dump(exclude_unset=True)


def usage_of(prompts: Sequence[Outcome], outcomes: Sequence[Outcome]) -> Json:
    """`prompts`: an outcome of each prompt."""
    prompt_tokens = sum(each.prompt_tokens for each in prompts)
    details = {"cached_tokens": sum(cached_tokens(each) for each in prompts)}
    used = usage(prompt_tokens, sum(each.completion_tokens for each in outcomes))
    return used | {"prompt_tokens_details": details}


def cached_tokens(outcome: Outcome) -> int:
    """The tokens of the prompt that a prefix cache had."""
    return outcome.stats.cached_tokens if outcome.stats else 0


def usage(prompt_tokens: int, completion_tokens: int) -> Json:
    total_tokens = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total_tokens}
