"""GET /cluster, /events and /plans: the cell now, as it goes on, and what was decided about it."""

from collections.abc import AsyncIterator

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from services.gateway.parts import Parts
from services.gateway.views import ClusterView, PlanList, Update


def cluster_routes(parts: Parts) -> APIRouter:
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
    async def plans() -> PlanList:
        """The reconfigurator's decisions, the latest first."""
        return PlanList(data=[])

    return router


async def _events(parts: Parts) -> AsyncIterator[str]:
    async for update in parts.watch.updates():
        yield f"data: {update.model_dump_json()}\n\n"
