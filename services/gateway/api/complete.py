"""Serves one body: reads it, plans its requests, publishes them, waits for their outcomes, and replies."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
from fastapi import Request
from fastapi.responses import Response
from starlette.background import BackgroundTask

from services.gateway.admission.admission import key_of
from services.gateway.api.app_context import AppContext
from services.gateway.api.completion_stream import CompletionStream, StreamedChoice
from services.gateway.api.errors import as_api_error
from services.gateway.api.opening import open_all
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.replies_and_chunks import StreamedReplies
from services.gateway.api.request_body import read_body
from services.gateway.api.request_models import ServedBody
from services.gateway.errors import ApiError, check_completed, unless_left
from services.gateway.inflight import InFlightRequest
from services.gateway.metrics import RequestRecorder
from shared.errors import RetryLater
from shared.messages.requests import Outcome


async def complete(context: AppContext, http: Request, kind: type[ServedBody]) -> Response:
    """Serve the requests of one body, one for each choice, and record their metrics."""
    start_s, created_s, key = time.perf_counter(), time.time(), key_of(http)
    try:
        context.admission.check_rate(key)
        async with read_body(http, kind, context.bodies) as sent:
            body, model, plan = await context.plan(sent, http.headers, key, partial(_disconnected, http))
            opened = await open_all(context, model, http, body, plan, start_s)
    except Exception as error:
        reply = as_api_error(error)
        reason = "rejected" if reply.status < 500 else "unavailable"
        context.metrics.not_completed("left" if reply.code == "left" else reason)
        raise
    request_id, form_field, is_stream = opened[0].request.request_id, plan.wanted.form_field, body.stream
    recorders = [RequestRecorder(context.metrics, model.name, each.request, start_s) for each in opened]
    with _ended_by_errors(opened, recorders):
        replies = plan.wanted.replies(request_id, created_s)
        ignored = ignored_header(body, [*plan.left_out, *context.tables.ignored(sent)])
        headers = {"X-Request-Id": request_id, **ignored, **plan.adjusted}
        del sent, body, plan  # they may take much memory, and the requests much time
        if is_stream and isinstance(replies, StreamedReplies):
            await _check_not_rejected(http, opened[0], form_field)
            pairs = enumerate(zip(opened, recorders, strict=True))
            choices = [StreamedChoice.of(i, each, model.text, own, form_field) for i, (each, own) in pairs]
            return CompletionStream(model.text.decode, choices, replies, headers)
        outcomes = await unless_left(_disconnected(http), _completed(opened, form_field))
        whole = replies.whole(outcomes)
    for inflight in opened:
        inflight.close()
    record = BackgroundTask(_record, recorders, outcomes)
    content = msgspec.json.encode(whole)  # a number of the body that is not finite comes back as null
    return Response(content, headers=headers, media_type="application/json", background=record)


async def _record(recorders: Sequence[RequestRecorder], outcomes: Sequence[Outcome]) -> None:
    """Record completed requests: after the reply, which it would delay."""
    for recorder, outcome in zip(recorders, outcomes, strict=True):
        recorder.completed(outcome)


@contextmanager
def _ended_by_errors(inflights: Sequence[InFlightRequest], recorders: Sequence[RequestRecorder]) -> Iterator[None]:
    """Close the requests if the block fails, and record an error reply, which then names the first request."""
    try:
        yield
    except BaseException as error:
        for inflight in inflights:
            inflight.close()
        if not isinstance(error, ApiError | RetryLater):
            raise
        reply = as_api_error(error)
        for recorder in recorders:
            recorder.not_completed(reply.code or "failed")
        raise reply.of_request(inflights[0].request.request_id) from None


async def _completed(inflights: Sequence[InFlightRequest], form_field: str) -> list[Outcome]:
    """The outcomes. `form_field`: as in check_completed. Raises: ApiError if a request is not completed."""

    async def completed(inflight: InFlightRequest) -> Outcome:
        outcome = await inflight.outcome()
        check_completed(outcome, form_field)
        return outcome

    return await asyncio.gather(*map(completed, inflights))


async def _check_not_rejected(http: Request, inflight: InFlightRequest, form_field: str) -> None:
    """Wait for the first event of a request with a form. The worker rejects it if each text of the form is longer than
    `max_tokens`; before the stream begins, the reply can still be a 400.

    Raises: ApiError if the event is that the request is not completed; 499 if the client leaves first.
    """
    if not (inflight.request.pattern or inflight.request.choices):
        return
    event = await unless_left(_disconnected(http), inflight.first_event())
    if isinstance(event, Outcome):
        check_completed(event, form_field)


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
