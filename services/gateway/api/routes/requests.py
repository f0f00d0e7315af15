"""GET /v1/requests and /v1/requests/{id}: how requests ended; also for a client that lost its connection."""

import re
from typing import Annotated

from fastapi import APIRouter, Query

from services.gateway.api.errors import ApiError
from services.gateway.api.replies import ChatFormat, TextFormat, serving, usage
from services.gateway.api.response_models import Serving, StoredRequest, StoredRequestError, Usage
from services.gateway.api.step_details import step_list
from services.gateway.app_context import AppContext
from services.gateway.console.cluster_monitor import RECENT
from services.gateway.console.console_models import RequestList, RequestSummary
from services.gateway.inflight import find_outcome
from shared.messages.requests import Outcome

PREVIEW = 120  # characters of a text in the list
REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def request_routes(parts: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/requests")

    @router.get("", response_model_exclude_unset=True)
    async def list_requests(limit: Annotated[int, Query(ge=1, le=RECENT)] = 50) -> RequestList:
        """The requests that ended last, the latest first."""
        return RequestList(object="list", data=[summary(outcome) for outcome in parts.watch.recent(limit)])

    @router.get("/{name}", response_model_exclude_unset=True)
    async def get_request(name: str) -> StoredRequest:
        """`name` is the request's id, or the id of the reply."""
        request_id = name.removeprefix(ChatFormat.id_prefix).removeprefix(TextFormat.id_prefix)
        known = REQUEST_ID.fullmatch(request_id)
        outcome = await find_outcome(parts.link.bus, request_id) if known else None
        if outcome is None:
            raise ApiError(404, "no request of this id has ended in the last day", param="id", code="not_found")
        error = outcome.error
        return StoredRequest(
            object="dilaserve.request",
            id=outcome.request_id,
            status=outcome.status,
            text=outcome.text,
            finish_reason=outcome.finish_reason,
            usage=Usage(**usage(outcome)),
            error=StoredRequestError(message=error.message, param=error.field) if error else None,
            dilaserve=Serving(**serving(outcome)),
            steps=step_list(outcome.decisions, outcome.stats.slo_s) if outcome.stats else [],
        )

    return router


def summary(outcome: Outcome) -> RequestSummary:
    error = outcome.error
    return RequestSummary(
        id=outcome.request_id,
        status=outcome.status,
        arrival_s=outcome.arrival_s,
        text=outcome.text[:PREVIEW],
        error=StoredRequestError(message=error.message, param=error.field) if error else None,
        dilaserve=Serving(**serving(outcome)),
    )
