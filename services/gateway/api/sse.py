"""The streamed reply: server-sent events of committed text, in order."""

import json
from collections.abc import AsyncIterator, Mapping

import structlog
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from services.gateway.api.canvas_events import canvas
from services.gateway.api.errors import ApiError, as_api_error, outcome_error
from services.gateway.api.replies import Json, Replies, used_tokens
from services.gateway.api.text_stream import TextChanged, TextStream
from services.gateway.app_context import AppContext
from services.gateway.inflight import InFlightRequest, Unmasked
from services.gateway.request_recorder import RequestRecorder
from shared.arrays import unpack_int32
from shared.messages.requests import Outcome

log = structlog.get_logger(__name__)


class EventStream(StreamingResponse):
    """Follows one call to its end and closes it, also when the client leaves before."""

    def __init__(
        self,
        parts: AppContext,
        call: InFlightRequest,
        replies: Replies,
        record: RequestRecorder,
        *,
        with_canvas: bool,
        continuous_usage: bool,
        headers: Mapping[str, str],
    ) -> None:
        self._parts = parts
        self._call = call
        self._replies = replies
        self._record = record
        self._with_canvas = with_canvas
        self._continuous_usage = continuous_usage
        headers = {"Cache-Control": "no-cache", **headers}
        super().__init__(self._events(), headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._parts.calls.close(self._call)
            self._record.failed("left")

    async def _events(self) -> AsyncIterator[str]:
        try:
            async for chunk in self._chunks():
                yield _event(chunk)
        except Exception as error:  # the status line is sent: the error goes into the stream
            told = as_api_error(error)
            if told.status == 500 and not isinstance(error, ApiError):
                log.exception("stream failed", request_id=self._call.request.request_id)
            self._record.failed(told.code or "failed")
            yield _event(told.body())
        else:
            yield "data: [DONE]\n\n"

    async def _chunks(self) -> AsyncIterator[Json]:
        """Raises: ApiError if the request has no text, or another one than was given out."""
        text, request = self._parts.text, self._call.request
        stream = TextStream(text.decode, text.end_ids, request.stop, request.output_tokens)
        prompt_tokens = len(unpack_int32(request.prompt_ids or b""))
        guessed: Unmasked | None = None
        for chunk in self._replies.opening():
            yield chunk
        async for event in self._call.events():
            if isinstance(event, Outcome):
                piece = self._finish(stream, event)
            elif not event.committed:
                guessed = event  # they come before the step itself, which goes by the scheduler
                continue
            else:
                piece = stream.add(event.positions, event.tokens)
                if self._with_canvas:
                    yield canvas(event, guessed, text.decode)
            if piece:
                if piece == stream.text:
                    self._record.first_text()
                used = used_tokens(prompt_tokens, stream.tokens_read) if self._continuous_usage else None
                yield self._replies.text(piece, used)
            if isinstance(event, Outcome):
                self._record.completed(event)
                for chunk in self._replies.last(event):
                    yield chunk

    def _finish(self, stream: TextStream, outcome: Outcome) -> str:
        error = outcome_error(outcome)
        if error is not None:
            raise error
        try:
            return stream.finish(outcome.text)
        except TextChanged:
            where = f"/v1/requests/{outcome.request_id}"
            message = f"the request was served again from the start and its text is another; fetch it at {where}"
            raise ApiError(500, message, code="text_changed") from None


def _event(content: Json) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"
