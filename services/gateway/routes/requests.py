"""GET /v1/requests/{id}: how a request ended, for a client that lost its connection."""

import re
from typing import Any

from fastapi import APIRouter

from services.gateway.calls import find_outcome
from services.gateway.decisions import step_list
from services.gateway.errors import ApiError
from services.gateway.parts import Parts
from services.gateway.replies import ChatForm, TextForm, serving, usage

REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def request_routes(parts: Parts) -> APIRouter:
    router = APIRouter(prefix="/v1/requests")

    @router.get("/{name}")
    async def get_request(name: str) -> dict[str, Any]:
        """`name` is the request's id, or the id of the reply."""
        request_id = name.removeprefix(ChatForm.id_prefix).removeprefix(TextForm.id_prefix)
        known = REQUEST_ID.fullmatch(request_id)
        outcome = await find_outcome(parts.link.bus, request_id) if known else None
        if outcome is None:
            raise ApiError(404, "no request of this id has ended in the last day", param="id", code="not_found")
        error = outcome.error
        return {
            "object": "dilaserve.request",
            "id": outcome.request_id,
            "status": outcome.status.value,
            "text": outcome.text,
            "finish_reason": outcome.finish_reason,
            "usage": usage(outcome),
            "error": {"message": error.message, "param": error.field} if error else None,
            "dilaserve": serving(outcome),
            "steps": step_list(outcome.decisions, outcome.stats.slo_s) if outcome.stats else [],
        }

    return router
