"""GET /cluster, /events and /plans: the state of the cell, its updates, and the reconfigurator's decisions."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event

from services.gateway.api.app_context import AppContext
from services.gateway.api.completion_stream import NO_CACHE
from services.gateway.api.openapi import PLANS
from services.gateway.api.response_models import PlanList
from services.gateway.cell_context import CellContext
from services.gateway.console.cluster_view import ClusterView, Update
from shared.bus.plan_history import read_plans
from shared.messages.plans import MAX_PLANS


def cluster_routes(context: AppContext) -> APIRouter:
    router = APIRouter()

    def find_cell(model: str | None, cell: str | None) -> CellContext:
        found = context.models[0] if model is None else context.cells_of(model)
        return found.first if cell is None else found.named(cell)

    @router.get("/cluster")
    async def cluster(model: str | None = None, cell: str | None = None) -> ClusterView:
        """The nodes and instances of a cell of a model, by default the first one, with their load and state."""
        return find_cell(model, cell).monitor.cluster()

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={200: {"model": Update, "content": {"text/event-stream": {}}, "description": "Server-sent events."}},
    )
    async def events(model: str | None = None, cell: str | None = None) -> StreamingResponse:
        """One update of the cell per second; the first contains the last hour."""
        updates = find_cell(model, cell).monitor.updates()
        data = (format_sse_event(data_str=update.model_dump_json()) async for update in updates)
        return EventSourceResponse(data, headers=NO_CACHE)

    @router.get("/plans", responses=PLANS)
    async def plans(
        limit: Annotated[int, Query(ge=1, le=MAX_PLANS)] = 50, model: str | None = None, cell: str | None = None
    ) -> Response:
        """The reconfigurator's decisions, newest first, and whether it runs."""
        found = find_cell(model, cell)
        records = await read_plans(found.connection.bus, limit)
        plans = PlanList(data=records, reconfigurator=found.monitor.reconfigurator)
        return Response(msgspec.json.encode(plans), media_type="application/json")

    return router
