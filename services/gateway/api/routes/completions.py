"""POST /v1/chat/completions and /v1/completions."""

import asyncio
import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from msgspec.structs import replace

from services.gateway.admission.admission import key_of
from services.gateway.api.completion_stream import CompletionStream
from services.gateway.api.errors import ApiError, as_api_error, check_completed, check_model
from services.gateway.api.openapi import json_body
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.replies import Replies
from services.gateway.api.request_body import read_body
from services.gateway.api.request_builder import adjusted_header, build_request
from services.gateway.api.request_models import ChatBody, CompletionBody, TextBody
from services.gateway.api.response_models import ChatCompletion, Completion, TextCompletion
from services.gateway.app_context import AppContext
from services.gateway.inflight import InFlightRequest
from services.gateway.metrics import RequestRecorder
from shared.errors import RetryLater
from shared.messages.requests import Outcome


def completion_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.post("/chat/completions", responses=_responses(ChatCompletion), openapi_extra=json_body(ChatBody))
    async def chat(request: Request) -> Response:
        """Reply to a conversation, whole or as a stream of committed text."""
        return await _complete(context, request, ChatBody)

    @router.post("/completions", responses=_responses(TextCompletion), openapi_extra=json_body(TextBody))
    async def completions(request: Request) -> Response:
        """Continue a plain prompt, whole or as a stream of committed text."""
        return await _complete(context, request, TextBody)

    return router


def _responses(whole: type[Completion]) -> dict[int | str, dict[str, Any]]:
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"model": whole, "content": stream, "description": "The reply; with `stream`, server-sent events."}}


async def _complete(context: AppContext, http: Request, kind: type[CompletionBody]) -> Response:
    """Serve one request and record its end."""
    start_s, created_s = time.perf_counter(), time.time()
    try:
        context.admission.check_rate(key_of(http))
        body = await read_body(http, kind)
        inflight = await _open(context, http, body, start_s)
    except Exception as error:
        context.metrics.not_completed("unavailable" if as_api_error(error).status >= 500 else "rejected")
        raise
    request_id = inflight.request.request_id
    replies = Replies(body, request_id, created_s)
    headers = {"X-Request-Id": request_id, **ignored_header(body), **adjusted_header(body, inflight.request)}
    recorder = RequestRecorder(context.metrics, request_id, start_s)
    if body.stream:
        return CompletionStream(context, inflight, replies, recorder, headers)
    try:
        outcome = await _completed(http, inflight)
    except (ApiError, RetryLater) as error:
        recorder.not_completed(as_api_error(error).code or "failed")
        raise
    finally:
        context.inflight.close(inflight)
    recorder.completed(outcome)
    return JSONResponse(replies.whole(outcome), headers=headers)


async def _open(context: AppContext, http: Request, body: CompletionBody, start_s: float) -> InFlightRequest:
    """Validate, admit and publish the request, which arrived at `start_s` by `time.perf_counter`."""
    check_model(body.model, context.text.card.name)
    key, idempotency_key = key_of(http), http.headers.get("Idempotency-Key")
    request = await build_request(body, context.text, uuid.uuid4().hex, key.key_id)
    context.readiness.check_accepts()
    context.admission.check_priority(key, request)
    if idempotency_key is not None:
        claim = context.idempotency.claim(key.key_id, idempotency_key, http.url.path, body.model_dump_json())
        request = replace(request, request_id=await claim)
    context.admission.admit(key, request)
    return await context.inflight.open(request, key.key_id, start_s, durable=idempotency_key is not None)


async def _completed(http: Request, inflight: InFlightRequest) -> Outcome:
    """The outcome. Raises: ApiError if the request is not completed; 499 if its client leaves first."""
    waiting = asyncio.ensure_future(inflight.outcome())
    disconnected = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait({waiting, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ApiError(499, "the client left", code="left")  # never received
        outcome = waiting.result()
    finally:
        waiting.cancel()
        disconnected.cancel()
    check_completed(outcome)
    return outcome


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
