"""Serves one body: reads it, plans its requests, publishes them, waits for their outcomes, and replies."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
from fastapi import Request
from fastapi.responses import Response
from msgspec.structs import replace
from starlette.background import BackgroundTask

from services.gateway.admission.admission import key_of
from services.gateway.api.app_context import AppContext
from services.gateway.api.completion_stream import CompletionStream, StreamedChoice
from services.gateway.api.errors import as_api_error
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.plan import BodyPlan
from services.gateway.api.replies_and_chunks import StreamedReplies
from services.gateway.api.request_body import read_body
from services.gateway.api.request_models import ServedBody
from services.gateway.errors import ApiError, check_completed, unless_left
from services.gateway.inflight import EndedRequest, InFlightRequest
from services.gateway.metrics import RequestRecorder
from services.gateway.model_cells import ModelCells
from shared.errors import RetryLater, StorageFull
from shared.messages.requests import Outcome
from shared.messages.requests import Request as QueuedRequest
from shared.retry import retry

KEYED_RETRY_S = 0.5  # longest wait between two attempts to accept a request with an Idempotency-Key
KEYED_WAIT_S = 15.0  # longer than a broken connection, a restart of NATS or of an instance usually takes


async def complete(context: AppContext, http: Request, kind: type[ServedBody]) -> Response:
    """Serve the requests of one body, one for each choice, and record their metrics."""
    start_s, created_s, key = time.perf_counter(), time.time(), key_of(http)
    try:
        context.admission.check_rate(key)
        async with read_body(http, kind, context.bodies) as sent:
            body, model, plan = await context.plan(sent, http.headers, key, partial(_disconnected, http))
            opened = await _open_all(context, model, http, body, plan, start_s)
    except Exception as error:
        reply = as_api_error(error)
        reason = "rejected" if reply.status < 500 else "unavailable"
        context.metrics.requests.labels("left" if reply.code == "left" else reason).inc()
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
            choices = [StreamedChoice(i, each, model.text, own, form_field) for i, (each, own) in pairs]
            return CompletionStream(choices, replies, headers)
        outcomes = await unless_left(_disconnected(http), _completed(opened, form_field))
        whole = replies.whole(outcomes)
    for inflight in opened:
        inflight.close()
    record = BackgroundTask(_record, recorders, outcomes)
    content = msgspec.json.encode(whole)  # a number of the body that is not finite comes back as null
    return Response(content, headers=headers, media_type="application/json", background=record)


async def _open_all(
    context: AppContext, model: ModelCells, http: Request, body: ServedBody, plan: BodyPlan, start_s: float
) -> list[InFlightRequest]:
    """Publish the request of each choice, and keep the conversation. Each counts against the key's limits. `start_s`:
    the arrival by `time.perf_counter`."""
    key, opened = key_of(http), list[InFlightRequest]()
    context.admission.check_plan(key, plan.requests, plan.wanted.choices_field, are_run=not plan.outcomes)
    if plan.outcomes:
        return [EndedRequest(request, end) for request, end in zip(plan.requests, plan.outcomes, strict=True)]
    name = http.headers.get("Idempotency-Key")
    as_sent = "" if name is None else body.model_dump_json()

    async def open_keyed(name: str, owner: str, request: QueuedRequest) -> InFlightRequest:
        """Admit and publish the request that the Idempotency-Key names, in the cell that has it."""
        request_id, cell, confirm = await model.claimed(owner, name, http.url.path, as_sent)
        return await context.admission.open(
            key, replace(request, request_id=request_id), start_s, cell, confirm=confirm
        )

    try:
        for index, request in enumerate(plan.requests):
            owner = key.key_id + (f"#{index}" if index else "")
            if name is None:
                opened.append(await model.offer(partial(context.admission.open, key, request, start_s)))
            else:
                opened.append(await _patiently(model, partial(open_keyed, name, owner, request)))
        if plan.wanted.keep is not None:
            await plan.wanted.keep(opened[0].request.request_id, opened[0].cell)
    except BaseException:
        for inflight in opened:
            inflight.close()
        raise
    return opened


async def _patiently(model: ModelCells, open_one: Callable[[], Awaitable[InFlightRequest]]) -> InFlightRequest:
    """Try again while the bus or the instances are unavailable, at most for KEYED_WAIT_S: the key ensures that the
    request is served once. A full cell and a gateway that shuts down refuse it at once."""

    def is_passing(error: Exception) -> bool:
        is_full = isinstance(error, StorageFull)
        return isinstance(error, RetryLater) and not is_full and not model.first.readiness.draining

    return await retry(open_one, wait_max_s=KEYED_RETRY_S, timeout_s=KEYED_WAIT_S, is_retryable=is_passing)


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
        reply.headers = {**(reply.headers or {}), "X-Request-Id": inflights[0].request.request_id}
        raise reply from None


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
