"""POST /v1/chat/completions and /v1/completions."""

import asyncio
import time
import uuid
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from services.gateway.admission.admission import key_of
from services.gateway.api.errors import ApiError, as_api_error, no_such_model, outcome_error
from services.gateway.api.openapi import json_body
from services.gateway.api.replies import ChatFormat, Replies, ReplyFormat, TextFormat
from services.gateway.api.request_body import read_body
from services.gateway.api.request_builder import compose
from services.gateway.api.request_models import ChatBody, CompletionBody, StreamOptions, TextBody
from services.gateway.api.response_models import ChatCompletion, Completion, TextCompletion
from services.gateway.api.sse import EventStream
from services.gateway.app_context import AppContext
from services.gateway.inflight import InFlightRequest
from services.gateway.request_recorder import RequestRecorder
from shared.errors import RetryLater
from shared.messages.requests import Outcome

IDEMPOTENCY_KEY = "Idempotency-Key"


def completion_routes(parts: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.post("/chat/completions", responses=_replies(ChatCompletion), openapi_extra=json_body(ChatBody))
    async def chat(request: Request) -> Response:
        """A reply to a conversation, whole or as a stream of committed text."""
        return await _complete(parts, request, ChatBody, ChatFormat())

    @router.post("/completions", responses=_replies(TextCompletion), openapi_extra=json_body(TextBody))
    async def completions(request: Request) -> Response:
        """What follows a plain prompt, whole or as a stream of committed text."""
        return await _complete(parts, request, TextBody, TextFormat())

    return router


def _replies(whole: type[Completion]) -> dict[int | str, dict[str, Any]]:
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"model": whole, "content": stream, "description": "whole; with `stream`, server-sent events"}}


async def _complete(parts: AppContext, http: Request, kind: type[CompletionBody], form: ReplyFormat) -> Response:
    """Serve one request, counting those that are refused."""
    start_s, arrival_s = time.perf_counter(), time.time()
    key = key_of(http)
    try:
        parts.gate.count(key)
        body = await read_body(http, kind)
        call = await _open(parts, http, body, arrival_s)
    except Exception as error:
        parts.metrics.ended("unavailable" if as_api_error(error).status >= 500 else "rejected")
        raise
    wanted = body.stream_options or StreamOptions()
    name = call.request.request_id
    replies = Replies(form, body.model, name, arrival_s, include_usage=wanted.include_usage)
    record = RequestRecorder(parts.metrics, name, start_s)
    headers = {"X-Request-Id": name}
    if body.stream:
        return EventStream(
            parts,
            call,
            replies,
            record,
            with_canvas=body.canvas,
            continuous_usage=wanted.continuous_usage_stats,
            headers=headers,
        )
    try:
        outcome = await _whole(http, call, record)
    finally:
        parts.calls.close(call)
    return JSONResponse(replies.whole(outcome), headers=headers)


async def _open(parts: AppContext, http: Request, body: CompletionBody, arrival_s: float) -> InFlightRequest:
    if body.model != parts.text.card.name:
        raise no_such_model(body.model, parts.text.card.name)
    key, repeatable = key_of(http), http.headers.get(IDEMPOTENCY_KEY)
    name = uuid.uuid4().hex
    request = await compose(body, parts.text, name, arrival_s)
    parts.readiness.check()
    parts.gate.permit(key, request)
    if repeatable is not None:
        name = await parts.claims.claim(key.key_id, repeatable, http.url.path, body.model_dump_json())
        request = msgspec.structs.replace(request, request_id=name)
    parts.gate.admit(key, request)
    return await parts.calls.open(request, key.key_id, lasting=repeatable is not None)


async def _whole(http: Request, call: InFlightRequest, record: RequestRecorder) -> Outcome:
    """The outcome of a request that was completed. Raises: ApiError for any other end."""
    try:
        outcome = await _unless_left(http, call)
        wrong = outcome_error(outcome)
        if wrong is not None:
            raise wrong
    except (ApiError, RetryLater) as error:
        record.failed(as_api_error(error).code or "failed")
        raise
    record.completed(outcome)
    return outcome


async def _unless_left(http: Request, call: InFlightRequest) -> Outcome:
    """The outcome. Raises: ApiError 499 when the client leaves first (nobody reads that reply)."""
    outcome = asyncio.ensure_future(call.outcome())
    left = asyncio.ensure_future(_client_left(http))
    try:
        await asyncio.wait({outcome, left}, return_when=asyncio.FIRST_COMPLETED)
        if outcome.done():
            return outcome.result()
        raise ApiError(499, "the client left", code="left")
    finally:
        outcome.cancel()
        left.cancel()


async def _client_left(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
