"""Admits and publishes the requests of a plan: all, or none."""

from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import Request
from msgspec.structs import replace

from services.gateway.admission.admission import key_of
from services.gateway.api.app_context import AppContext
from services.gateway.api.plan import BodyPlan
from services.gateway.api.request_models import ServedBody
from services.gateway.inflight import EndedRequest, InFlightRequest
from services.gateway.model_cells import ModelCells
from shared.errors import RetryLater, StorageFull
from shared.messages.requests import Request as QueuedRequest
from shared.retry import retry

KEYED_RETRY_S = 0.5  # longest wait between two attempts to accept a request with an Idempotency-Key
KEYED_WAIT_S = 15.0  # longer than a broken connection, a restart of NATS or of an instance usually takes


async def open_all(
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
