"""GET /health, /ready and /metrics: for supervisors, load balancers, some of which ask with HEAD, and Prometheus."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from services.gateway.api.response_models import Status
from services.gateway.app_context import AppContext


def health_routes(parts: AppContext) -> APIRouter:
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Status:
        """The process lives."""
        return Status(status="ok")

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready() -> Status:
        """Requests can be served; else 503 with the reason."""
        parts.readiness.check()
        return Status(status="ready")

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        parts.metrics.active.set(parts.calls.active)
        return Response(parts.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
