"""Serves one HTTP body: validates, admits and publishes its requests, waits for their outcomes, and replies."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from msgspec.structs import replace
from starlette.background import BackgroundTask

from services.gateway.admission.admission import key_of
from services.gateway.api.anthropic_messages.body import MessageBody
from services.gateway.api.anthropic_messages.replies import MessageReplies
from services.gateway.api.completion_stream import CompletionStream, StreamedChoice, StreamedLogprobs, dump
from services.gateway.api.errors import ApiError, as_api_error, check_completed
from services.gateway.api.openai_responses.body import ResponseBody
from services.gateway.api.openai_responses.replies import ResponseReplies
from services.gateway.api.other_fields import ignored_header
from services.gateway.api.replies import CompletionReplies, Replies
from services.gateway.api.request_body import read_body
from services.gateway.api.request_builder import adjusted_header, build_request, echoed_prompt, outcome_without_steps
from services.gateway.api.request_models import CompletionBody, ServedBody
from services.gateway.api.serving_fields import with_serving_fields
from services.gateway.api.sse import DONE, EventStreamResponse, as_event
from services.gateway.api.text_forms import field_of_form
from services.gateway.api.text_stream import TextStream
from services.gateway.api.tool_calls.use import tool_use
from services.gateway.app_context import AppContext
from services.gateway.cell_context import CellContext
from services.gateway.inflight import Confirm, InFlightRequest
from services.gateway.metrics import RequestRecorder
from services.gateway.model_cells import ModelCells
from shared.api_keys import ApiKey
from shared.arrays import unpack_int32
from shared.errors import RetryLater, StorageFull
from shared.messages.requests import Outcome
from shared.messages.requests import Request as QueuedRequest
from shared.pinned import protected_tokens
from shared.retry import retry
from shared.tasks import cancel
from shared.text import TextModel

T = TypeVar("T")

KEYED_RETRY_S = 0.5  # longest wait between two attempts to accept a request with an Idempotency-Key
KEYED_WAIT_S = 15.0  # longer than a broken connection, a restart of NATS or of an instance usually takes


async def complete(context: AppContext, http: Request, kind: type[ServedBody]) -> Response:
    """Serve the requests of one body, one for each choice, and record their metrics."""
    start_s, created_s = time.perf_counter(), time.time()
    try:
        context.admission.check_rate(key_of(http))
        sent = with_serving_fields(await read_body(http, kind), http.headers, context.tables)
        as_sent = sent.model_dump_json() if "Idempotency-Key" in http.headers else None
        model = context.cells_of(sent.model)
        if isinstance(sent, ResponseBody):
            sent = await model.conversations.continued(sent, key_of(http))
        body = sent.completion()
        bodies = body.single_bodies()
        if body.max_tokens == 0:
            return await _echo_prompts(context, model, http, body, bodies, start_s)
        inflights = await _open_all(context, model, http, body, bodies, as_sent, start_s)
        if isinstance(sent, ResponseBody) and sent.store:
            await _keep(model, http, inflights[0], sent)
    except Exception as error:
        context.metrics.not_completed("unavailable" if as_api_error(error).status >= 500 else "rejected")
        raise
    request_id, requests = inflights[0].request.request_id, [each.request for each in inflights]
    replies = _replies(model.text, sent, bodies, request_id, created_s)
    ignored = ignored_header(sent, context.tables.ignored(sent))
    headers = {"X-Request-Id": request_id, **ignored, **adjusted_header(body, requests)}
    recorders = [RequestRecorder(context.metrics, model.name, each.request, start_s) for each in inflights]
    form_field = field_of_form(bodies[0])
    with _ended_by_errors(inflights, recorders):
        if body.stream:
            await _check_not_rejected(http, inflights[0], form_field)
            pairs = enumerate(zip(inflights, recorders, strict=True))
            choices = [_streamed(model.text, i, each, recorder, form_field) for i, (each, recorder) in pairs]
            return CompletionStream(model.text.decode, choices, replies, headers)
        outcomes = await _while_connected(http, _completed(inflights, form_field))
    for inflight in inflights:
        inflight.close()
    return JSONResponse(
        replies.whole(outcomes), headers=headers, background=BackgroundTask(_record, recorders, outcomes)
    )


async def _record(recorders: Sequence[RequestRecorder], outcomes: Sequence[Outcome]) -> None:
    """Record completed requests: after the reply, which it would delay."""
    for recorder, outcome in zip(recorders, outcomes, strict=True):
        recorder.completed(outcome)


async def _keep(model: ModelCells, http: Request, inflight: InFlightRequest, sent: ResponseBody) -> None:
    """Store the input of a response; if that fails, cancel its request."""
    try:
        await model.conversations.keep(inflight.request.request_id, inflight.cell, sent, key_of(http))
    except BaseException:
        inflight.close()
        raise


async def _echo_prompts(
    context: AppContext,
    model: ModelCells,
    http: Request,
    body: CompletionBody,
    bodies: Sequence[CompletionBody],
    start_s: float,
) -> Response:
    """Answer a body with `max_tokens: 0`, which only echoes the prompts. No request is published; each choice counts
    against the key's rate."""
    outcomes = [await outcome_without_steps(each, model.text, uuid.uuid4().hex) for each in bodies]
    context.admission.check_choices(key_of(http), len(outcomes), body.choices_field)
    for outcome in outcomes:
        request = QueuedRequest(request_id=outcome.request_id)
        RequestRecorder(context.metrics, model.name, request, start_s).completed(outcome)
    request_id = outcomes[0].request_id
    replies = _replies(model.text, body, bodies, request_id, outcomes[0].arrival_s)
    headers = {"X-Request-Id": request_id, **ignored_header(body, context.tables.ignored(body))}
    if not body.stream:
        return JSONResponse(replies.whole(outcomes), headers=headers)

    async def events() -> AsyncIterator[str]:
        for i, outcome in enumerate(outcomes):
            for chunk in (*replies.opening(i, outcome.prompt_tokens), *replies.ending(i, outcome)):
                yield dump(chunk)
        for chunk in replies.last(outcomes):
            yield dump(chunk)
        yield as_event(DONE)

    return EventStreamResponse(events(), headers)


def _replies(
    text: TextModel, sent: ServedBody, bodies: Sequence[CompletionBody], request_id: str, created_s: float
) -> Replies:
    """`bodies`: of the choices; `request_id`: of the first."""
    if isinstance(sent, ResponseBody):
        return ResponseReplies(sent, request_id, created_s, text.decode, tool_use(bodies[0], text))
    if isinstance(sent, MessageBody):
        return MessageReplies(sent, request_id, tool_use(bodies[0], text))
    echoes = [echoed_prompt(each, text) for each in bodies]
    return CompletionReplies(sent.completion(), request_id, created_s, echoes, text)


def _streamed(
    text: TextModel, index: int, inflight: InFlightRequest, recorder: RequestRecorder, form_field: str
) -> StreamedChoice:
    request, length = inflight.request, inflight.request.output_tokens
    end_ids = text.end_ids_of(request)
    pinned, protected = unpack_int32(request.pinned), protected_tokens(request, end_ids)
    stream = TextStream(text.decode, end_ids, request.stop, length, request.max_tokens, pinned, protected)
    prompt_tokens = len(request.prompt_ids or b"") // 4 + text.given_tokens(request)
    logprobs = StreamedLogprobs(text.decode, length, request.top_logprobs) if request.logprobs else None
    return StreamedChoice(index, inflight, recorder, stream, prompt_tokens, form_field, logprobs=logprobs)


async def _open_all(
    context: AppContext,
    model: ModelCells,
    http: Request,
    body: CompletionBody,
    bodies: Sequence[CompletionBody],
    as_sent: str | None,
    start_s: float,
) -> list[InFlightRequest]:
    """Validate the request of each choice, then admit and publish them: all, or none. Each counts against the key's
    limits. `as_sent`: the body of a request with an Idempotency-Key; `start_s`: the arrival by `time.perf_counter`."""
    key, opened = key_of(http), list[InFlightRequest]()
    requests = [
        await build_request(each, model.text, uuid.uuid4().hex, key.key_id, key.usual_priority) for each in bodies
    ]
    context.admission.check_priority(key, requests[0])
    context.admission.check_concurrency(key, len(requests), body.choices_field)
    context.admission.check_choices(key, len(requests), body.choices_field)
    try:
        for index, request in enumerate(requests):
            if as_sent is None:
                opened.append(await model.offer(partial(_open, context, key, request, start_s)))
            else:
                open_one = partial(_open_keyed, context, model, http, as_sent, index, request, start_s)
                opened.append(await _open_in_time(model, open_one))
    except BaseException:
        for inflight in opened:
            inflight.close()
        raise
    return opened


async def _open(
    context: AppContext,
    key: ApiKey,
    request: QueuedRequest,
    start_s: float,
    cell: CellContext,
    *,
    confirm: Confirm | None = None,
) -> InFlightRequest:
    """Admit the request, and publish it in the cell."""
    context.admission.admit(key)
    request = replace(request, may_refuse=cell.sheds)
    return await cell.inflight.open(request, key.key_id, start_s, confirm=confirm)


async def _open_keyed(
    context: AppContext,
    model: ModelCells,
    http: Request,
    as_sent: str,
    index: int,
    request: QueuedRequest,
    start_s: float,
) -> InFlightRequest:
    """Admit and publish the request of choice `index` that the Idempotency-Key names, in the cell that has it."""
    key = key_of(http)
    owner = key.key_id + (f"#{index}" if index else "")
    name = http.headers["Idempotency-Key"]
    request_id, cell, confirm = await model.claimed(owner, name, http.url.path, as_sent)
    return await _open(context, key, replace(request, request_id=request_id), start_s, cell, confirm=confirm)


async def _open_in_time(model: ModelCells, open_one: Callable[[], Awaitable[InFlightRequest]]) -> InFlightRequest:
    """Repeat `open_one` while the bus or the instances are unavailable, at most for KEYED_WAIT_S. The Idempotency-Key
    ensures that the request is served once. A full cell and a gateway that shuts down refuse it at once."""

    def is_passing(error: Exception) -> bool:
        is_full = isinstance(error, StorageFull)
        return isinstance(error, RetryLater) and not is_full and not model.first.readiness.draining

    return await retry(open_one, wait_max_s=KEYED_RETRY_S, timeout_s=KEYED_WAIT_S, is_retryable=is_passing)


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


async def _while_connected(http: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises: ApiError 499 if the client leaves first."""
    waiting = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_disconnected(http))
    both: set[asyncio.Future[Any]] = {waiting, disconnected}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ApiError(499, "the client left", code="left")  # a client that has left does not receive it
        return waiting.result()
    finally:
        await cancel(both)


async def _completed(inflights: Sequence[InFlightRequest], form_field: str) -> list[Outcome]:
    """The outcomes. Raises: ApiError if a request is not completed."""
    return await asyncio.gather(*(_completed_outcome(inflight, form_field) for inflight in inflights))


async def _completed_outcome(inflight: InFlightRequest, form_field: str) -> Outcome:
    outcome = await inflight.outcome()
    check_completed(outcome, form_field)
    return outcome


async def _check_not_rejected(http: Request, inflight: InFlightRequest, form_field: str) -> None:
    """Wait for the first event of a request with a form. The worker rejects it if each text of the form is longer than
    `max_tokens`; before the stream begins, the reply can still be a 400.

    Raises: ApiError if the event is that the request is not completed; 499 if the client leaves first.
    """
    if not (inflight.request.pattern or inflight.request.choices):
        return
    event = await _while_connected(http, inflight.first_event())
    if isinstance(event, Outcome):
        check_completed(event, form_field)


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
