"""GET /cluster, /events and /plans: the cell now, as it goes on, and what was decided about it."""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from services.gateway.app_context import AppContext
from services.gateway.console.console_models import ClusterView, PlanList, PlanView, Update
from shared.bus.plan_history import read_plans
from shared.messages.plans import MAX_PLANS


def cluster_routes(parts: AppContext) -> APIRouter:
    router = APIRouter()

    @router.get("/cluster")
    async def cluster() -> ClusterView:
        """The nodes and instances, with load and state."""
        return parts.watch.cluster()

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={200: {"model": Update, "content": {"text/event-stream": {}}, "description": "server-sent events"}},
    )
    async def events() -> StreamingResponse:
        """The cell live: an event a second; the first also brings the last minutes."""
        return StreamingResponse(_events(parts), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    @router.get("/plans")
    async def plans(limit: Annotated[int, Query(ge=1, le=MAX_PLANS)] = 50) -> PlanList:
        """The reconfigurator's decisions, the latest first."""
        records = await read_plans(parts.link.bus, limit)
        return PlanList(data=[PlanView.model_validate(msgspec.to_builtins(record)) for record in records])

    return router


async def _events(parts: AppContext) -> AsyncIterator[str]:
    async for update in parts.watch.updates():
        yield f"data: {update.model_dump_json()}\n\n"
