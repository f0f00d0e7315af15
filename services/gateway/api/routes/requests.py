"""GET /v1/requests and /v1/requests/{id}: the outcomes of requests, also for clients that lost their connection."""

import asyncio
import math
import re
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Annotated, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Query, Request
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.admission.admission import key_of
from services.gateway.api.anthropic_messages.replies import ID_PREFIX as MESSAGE_ID_PREFIX
from services.gateway.api.app_context import AppContext
from services.gateway.api.replies_and_chunks import ChatFormat, Json, TextFormat, usage_of
from services.gateway.api.response_models import RequestPage, RequestSummary, StoredRequest, UnfinishedRequest
from services.gateway.cell_context import CellContext
from services.gateway.console.cluster_monitor import end_s
from services.gateway.errors import ApiError, not_found
from services.gateway.inflight import find_active
from services.gateway.stores.conversations import ID_PREFIX as RESPONSE_ID_PREFIX
from shared.api_keys import ApiKey
from shared.arrays import unpack_float32, unpack_int32
from shared.bus.client import Bus
from shared.bus.errors import bus_errors
from shared.errors import RetryLater
from shared.messages.decisions import StepDecisions
from shared.messages.requests import ActiveRequest, Cancel, Outcome, UnfinishedQuery
from shared.messages.steps import StepKind

T = TypeVar("T")

MAX_PAGE = 500  # requests
Status = Literal["in_progress", "completed", "refused", "rejected", "failed", "cancelled"]


class RequestFilter(BaseModel):
    """The parameters of GET /v1/requests. None: no filter; of `status`: all finished requests."""

    model_config = ConfigDict(extra="forbid")  # a filter with a typing error would list all
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    after: Annotated[str | None, Field(description="id of the last request of the previous page")] = None
    status: Annotated[Status | None, Field(description="null: all finished ones")] = None
    slo_met: bool | None = None
    key: Annotated[str | None, Field(description="id of an API key; empty: requests without one")] = None
    instance: Annotated[
        str, Field(description="that ran a step, or for `in_progress` runs the next one; empty: any")
    ] = ""
    id: Annotated[str, Field(description="a part of the id, or the whole id of any request of the last day")] = ""

    def accepts(self, outcome: Outcome, viewer: ApiKey) -> bool:
        """Whether a finished request passes the filter and the viewer may see it."""
        stats = outcome.stats
        return (
            viewer.may_see(outcome.key)
            and self.status in (None, outcome.status)
            and self.key in (None, outcome.key)
            and (self.slo_met is None or (stats is not None and stats.slo_met is self.slo_met))
            and (not self.instance or (stats is not None and self.instance in stats.instances))
            and self.id in outcome.request_id
        )

    def query(self, viewer: ApiKey) -> UnfinishedQuery | None:
        """The query for unfinished requests. Returns: None if none can match."""
        if self.slo_met is not None or (self.key is not None and not viewer.may_see(self.key)):
            return None
        key = self.key if viewer.operator else viewer.key_id
        return UnfinishedQuery(key=key, instance=self.instance, id_part=self.id)


def page_after(items: Iterable[T], after: str | None, limit: int, id_of: Callable[[T], str]) -> tuple[list[T], bool]:
    """At most `limit` items after the one with the id `after`, if it names one, and whether there are more.

    Raises: ApiError 404 if no item has this id.
    """
    left = iter(items)
    if after and all(id_of(item) != after for item in left):
        raise not_found("item", after, "after")
    page = list(islice(left, limit + 1))
    return page[:limit], len(page) > limit


ID_PREFIXES = (ChatFormat.id_prefix, TextFormat.id_prefix, RESPONSE_ID_PREFIX, MESSAGE_ID_PREFIX)  # of replies
REQUEST_ID = re.compile(r"([a-z0-9_]{1,32}\.)?[A-Za-z0-9_-]{1,64}")  # the first part: a named producer


def request_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/requests")

    @router.get("", response_model_exclude_unset=True)
    async def list_requests(http: Request, wanted: Annotated[RequestFilter, Query()]) -> RequestPage:
        """The API key's most recently finished requests, newest first, or with the status `in_progress` those that
        wait or run, the first that arrived first; an operator's key lists those of all keys."""
        viewer = key_of(http)
        after = None if wanted.after is None else bare_id(wanted.after)
        wanted = wanted.model_copy(update={"id": bare_id(wanted.id), "after": after})
        if wanted.status == "in_progress":
            active, is_whole = await _unfinished(context, wanted, viewer)
            if wanted.after is not None:
                active = await _later(context, http, active, wanted.after)
            has_more = len(active) > wanted.limit or bool(active and not is_whole)
            page = active[: wanted.limit]
            return RequestPage(object="list", data=[UnfinishedRequest.of(each) for each in page], has_more=has_more)
        recent = merge(*(cell.monitor.recent() for cell in context.cells), key=end_s, reverse=True)
        ended = [each for each in recent if wanted.accepts(each, viewer)]
        outcomes, has_more = page_after(ended, wanted.after, wanted.limit, attrgetter("request_id"))
        if wanted.id and not outcomes:
            outcomes = await _older(context, http, wanted)
        summaries = [RequestSummary.of(each) for each in outcomes]
        return RequestPage(object="list", data=[*summaries], has_more=has_more, total=len(ended))

    @router.get("/{name}", response_model_exclude_unset=True)
    async def get_request(http: Request, name: str) -> StoredRequest | UnfinishedRequest:
        """The outcome of a request, or that it runs; `name` is the id of the request or of its reply."""
        found, _ = await _find(context, http, name)
        if not isinstance(found, Outcome):
            return found
        usage = usage_of([found], [found])
        steps = step_list(found.decisions, found.stats.slo_s) if found.stats else []
        return StoredRequest.of(found, object="dilaserve.request", usage=usage, steps=steps)

    @router.post("/{name}/cancel", status_code=202)
    async def cancel_request(http: Request, name: str) -> UnfinishedRequest:
        """Cancel a request that has not ended."""
        found, bus = await _find(context, http, name)
        if isinstance(found, Outcome):
            raise ApiError(409, f"the request has ended: {found.status.value}", param="id", code="request_ended")
        with bus_errors("cancel the request"):
            await bus.publish(bus.subjects.cancel(found.id), Cancel(reason="the client cancelled it"))
        return found.model_copy(update={"status": "cancelling"})

    return router


async def _unfinished(context: AppContext, wanted: RequestFilter, viewer: ApiKey) -> tuple[list[ActiveRequest], bool]:
    """The unfinished requests of all cells by arrival, and whether these are all. Raises: RetryLater."""
    if (query := wanted.query(viewer)) is None:
        return [], True
    replies = await asyncio.gather(*(cell.unfinished(query) for cell in context.cells))
    found = sorted((each for reply in replies for each in reply.requests), key=attrgetter("arrival_s", "request_id"))
    return found, all(reply.is_whole for reply in replies)


async def _later(context: AppContext, http: Request, active: list[ActiveRequest], after: str) -> list[ActiveRequest]:
    """The unfinished requests after the one with this id, which may have ended. Raises: ApiError 404; RetryLater."""
    arrival_s = next((each.arrival_s for each in active if each.request_id == after), None)
    if arrival_s is None:
        try:
            found, _ = await _find(context, http, after)
        except ApiError:
            raise not_found("item", after, "after") from None
        arrival_s = found.arrival_s
    return [each for each in active if (each.arrival_s, each.request_id) > (arrival_s, after)]


async def _older(context: AppContext, http: Request, wanted: RequestFilter) -> list[Outcome]:
    """The finished request with this id, if the list should have it. Raises: RetryLater."""
    try:
        found, _ = await _find(context, http, wanted.id)
    except ApiError:
        return []
    return [found] if isinstance(found, Outcome) and wanted.accepts(found, key_of(http)) else []


def bare_id(name: str) -> str:
    """The id of a request, of its own or of its reply's id."""
    for prefix in ID_PREFIXES:
        name = name.removeprefix(prefix)
    return name


async def _find(context: AppContext, http: Request, name: str) -> tuple[Outcome | UnfinishedRequest, Bus]:
    """The request, and the bus of its cell.

    Raises: ApiError 404 if there is no such request, or the key may not see it; RetryLater if a cell that does not
    answer may have it.
    """
    request_id, unknown = bare_id(name), None
    if REQUEST_ID.fullmatch(request_id):
        looking = (_find_in_cell(cell, request_id, key_of(http)) for cell in context.cells)
        for result in await asyncio.gather(*looking, return_exceptions=True):
            if isinstance(result, RetryLater):
                unknown = result
            elif isinstance(result, BaseException):
                raise result
            elif result is not None:
                return result
    if unknown is not None:
        raise unknown
    message = "no request with this id runs, or has ended in the last day"
    raise ApiError(404, message, param="id", code="not_found")


async def _find_in_cell(
    cell: CellContext, request_id: str, key: ApiKey
) -> tuple[Outcome | UnfinishedRequest, Bus] | None:
    """None if the cell has no such request, or the key may not see it. Raises: RetryLater if it does not answer."""
    bus = cell.connection.bus
    outcome = await bus.outcome(request_id)
    active = None if outcome is not None and outcome.is_final else await find_active(bus, request_id)
    if active is None and outcome is None:  # it may have ended in between
        outcome = await bus.outcome(request_id)
    if active is None:
        return (outcome, bus) if outcome is not None and key.may_see(outcome.key) else None
    if not key.may_see(active.key):
        return None
    return UnfinishedRequest.of(replace(active, request_id=request_id)), bus  # older schedulers omit the id


def step_list(steps: StepDecisions | None, slo_s: float) -> list[Json]:
    """One object per step: its decision and the numbers behind it.

    Units: ms. `t_ms` is from arrival until the step was sent; from then, `time_left_ms` is predicted to the last token
    (None: no prediction) and `slo_left_ms` is to the deadline. A damaged record has no steps.
    """
    try:
        return [] if steps is None else _rows(steps, slo_s)
    except (ValueError, IndexError):
        return []


def _rows(steps: StepDecisions, slo_s: float) -> list[Json]:
    """Raises: ValueError or IndexError if the columns do not fit together."""
    floats = (steps.at_s, steps.thresholds, steps.allowed, steps.time_left_s, steps.step_latency_s)
    integers = (steps.blocks, steps.kinds, steps.placed_on, steps.batch_requests, steps.batch_tokens)
    columns = [unpack_float32(each).tolist() for each in floats] + [unpack_int32(each).tolist() for each in integers]
    if not np.isfinite(columns[0] + columns[1] + columns[2] + columns[4]).all():
        raise ValueError("a number is not finite")
    rows = enumerate(zip(*columns, strict=True), steps.first_step)
    return [
        {
            "step": step,
            "t_ms": round(at_s * 1000, 3),
            "block": block,
            "kind": StepKind(kind).name.lower(),
            "threshold": round(threshold, 6),
            "allowed_threshold": round(allowed, 6),
            "instance": steps.instances[instance],
            "batch_requests": requests,
            "batch_tokens": tokens,
            "step_latency_ms": round(latency_s * 1000, 3),
            "time_left_ms": round(left_s * 1000, 3) if math.isfinite(left_s) else None,
            "slo_left_ms": round((slo_s - at_s) * 1000, 3),
        }
        for step, (at_s, threshold, allowed, left_s, latency_s, block, kind, instance, requests, tokens) in rows
    ]
