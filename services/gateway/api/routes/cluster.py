"""GET /cluster, /events and /plans: the state of the cell, its updates, and the reconfigurator's decisions."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from services.gateway.api.sse import EventStreamResponse
from services.gateway.app_context import AppContext
from services.gateway.console.console_models import ClusterView, PlanList, PlanView, Update
from shared.bus.plan_history import read_plans
from shared.messages.plans import MAX_PLANS


def cluster_routes(context: AppContext) -> APIRouter:
    router = APIRouter()

    @router.get("/cluster")
    async def cluster() -> ClusterView:
        """The nodes and instances with their load and state."""
        return context.monitor.cluster()

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={200: {"model": Update, "content": {"text/event-stream": {}}, "description": "Server-sent events."}},
    )
    async def events() -> StreamingResponse:
        """One update of the cell per second; the first contains the last minutes."""
        return EventStreamResponse(update.model_dump_json() async for update in context.monitor.updates())

    @router.get("/plans")
    async def plans(limit: Annotated[int, Query(ge=1, le=MAX_PLANS)] = 50) -> PlanList:
        """The reconfigurator's decisions, newest first."""
        records = await read_plans(context.connection.bus, limit)
        return PlanList(data=[PlanView.model_validate(msgspec.to_builtins(record)) for record in records])

    return router
