"""GET /v1/requests and /v1/requests/{id}: the outcomes of requests, also for clients that lost their connection."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from msgspec.structs import replace

from services.gateway.admission.admission import key_of
from services.gateway.api.errors import ApiError
from services.gateway.api.replies import ChatFormat, TextFormat, usage
from services.gateway.api.response_models import List, RequestSummary, Serving, StoredRequest, StoredRequestError, Usage
from services.gateway.api.step_details import step_list
from services.gateway.app_context import AppContext
from services.gateway.console.cluster_monitor import MAX_RECENT
from services.gateway.inflight import find_outcome
from shared.messages.requests import Outcome

PREVIEW_LENGTH = 120  # characters of a text in the list
REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def request_routes(context: AppContext) -> APIRouter:
    router = APIRouter(prefix="/v1/requests")

    @router.get("", response_model_exclude_unset=True)
    async def list_requests(
        http: Request, limit: Annotated[int, Query(ge=1, le=MAX_RECENT)] = 50
    ) -> List[RequestSummary]:
        """The API key's most recently finished requests, newest first; an operator's key lists those of all keys."""
        outcomes = context.monitor.recent(limit, key_of(http))
        shortened = (replace(outcome, text=outcome.text[:PREVIEW_LENGTH]) for outcome in outcomes)
        return List(object="list", data=[RequestSummary(**_fields(outcome)) for outcome in shortened])

    @router.get("/{name}", response_model_exclude_unset=True)
    async def get_request(http: Request, name: str) -> StoredRequest:
        """The outcome of a request; `name` is the id of the request or of its reply."""
        request_id = name.removeprefix(ChatFormat.id_prefix).removeprefix(TextFormat.id_prefix)
        outcome = await find_outcome(context.connection.bus, request_id) if REQUEST_ID.fullmatch(request_id) else None
        if outcome is None or not key_of(http).may_see(outcome.key):
            raise ApiError(404, "no request with this id has ended in the last day", param="id", code="not_found")
        return StoredRequest(
            object="dilaserve.request",
            finish_reason=outcome.finish_reason,
            usage=Usage(**usage(outcome.prompt_tokens, outcome.completion_tokens)),
            steps=step_list(outcome.decisions, outcome.stats.slo_s) if outcome.stats else [],
            **_fields(outcome),
        )

    return router


def _fields(outcome: Outcome) -> dict[str, Any]:
    """The fields of a summary."""
    error = outcome.error
    return {
        "id": outcome.request_id,
        "status": outcome.status,
        "arrival_s": outcome.arrival_s,
        "text": outcome.text,
        "error": StoredRequestError(message=error.message, param=error.field) if error else None,
        "dilaserve": Serving.of(outcome),
    }
