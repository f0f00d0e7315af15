"""The streamed reply to a completion: chunks of committed text, in order, and canvas events."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from services.gateway.api.errors import ApiError, as_api_error, check_completed, log_internal_error
from services.gateway.api.replies import Json, Replies
from services.gateway.api.sse import EventStreamResponse
from services.gateway.api.text_stream import Decode, TextChanged, TextStream
from services.gateway.app_context import AppContext
from services.gateway.inflight import InFlightRequest, StepTokens
from services.gateway.metrics import RequestRecorder
from shared.arrays import unpack_int32
from shared.messages.requests import Outcome


@dataclass(eq=False)
class CompletionStream(EventStreamResponse):
    """Follows one request to its outcome, then closes it, also if the client leaves earlier."""

    _context: AppContext
    _inflight: InFlightRequest
    _replies: Replies
    _recorder: RequestRecorder
    _reply_headers: dict[str, str]

    def __post_init__(self) -> None:
        super().__init__(self._data(), self._reply_headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.inflight.close(self._inflight)
            self._recorder.not_completed("left")

    async def _data(self) -> AsyncIterator[str]:
        try:
            async for chunk in self._chunks():
                yield _dump(chunk)
        except Exception as error:  # the status line is sent, so the error is the last event
            log_internal_error(error, self._inflight.request.request_id)
            reply = as_api_error(error)
            self._recorder.not_completed(reply.code or "failed")
            yield _dump(reply.body())
        else:
            yield "[DONE]"

    async def _chunks(self) -> AsyncIterator[Json]:
        """Raises: ApiError if the request is not completed, or its text contradicts the chunks already sent."""
        text, request = self._context.text, self._inflight.request
        stream = TextStream(text.decode, text.end_ids, request.stop, request.output_tokens, request.max_tokens)
        prompt_tokens = len(unpack_int32(request.prompt_ids or b""))
        guessed: StepTokens | None = None
        for chunk in self._replies.opening():
            yield chunk
        async for event in self._inflight.events():
            if isinstance(event, Outcome):
                piece = _finish(stream, event)
            elif not event.committed:
                guessed = event  # arrives before its step's committed tokens, which pass through the scheduler
                continue
            else:
                piece = stream.add(event.positions, event.tokens)
                if request.guesses:
                    yield _canvas(event, guessed, text.decode)
            if piece:
                if piece == stream.text:
                    self._recorder.first_text()
                yield self._replies.text(piece, prompt_tokens, stream.tokens_read)
            if isinstance(event, Outcome):
                self._recorder.completed(event)
                for chunk in self._replies.last(event):
                    yield chunk


def _finish(stream: TextStream, outcome: Outcome) -> str:
    """The text not yet sent."""
    check_completed(outcome)
    try:
        return stream.finish(outcome.text)
    except TextChanged:
        message = f"the request restarted with another text; fetch it at /v1/requests/{outcome.request_id}"
        raise ApiError(500, message, code="text_changed") from None


def _canvas(committed: StepTokens, guessed: StepTokens | None, decode: Decode) -> Json:
    """The tokens that a step committed, and its guesses for masked positions unless they are of another step."""
    cells = _cells(committed, decode)
    if guessed is not None and guessed.step == committed.step:
        cells += _cells(guessed, decode)
    return {"object": "dilaserve.canvas", "step": committed.step, "cells": cells}


def _cells(tokens: StepTokens, decode: Decode) -> list[Json]:
    """Each token with its own text: empty for special tokens, U+FFFD for a part of a character."""
    committed, columns = tokens.committed, (tokens.positions, tokens.tokens, tokens.confidences)
    return [
        {"position": position, "token": token, "text": decode([token]), "confidence": value, "committed": committed}
        for position, token, value in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _dump(content: Json) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
