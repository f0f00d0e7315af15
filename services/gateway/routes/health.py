"""GET /health, /ready and /metrics: for supervisors, load balancers and Prometheus."""

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from services.gateway.parts import Parts


def health_routes(parts: Parts) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @router.get("/ready")
    async def ready() -> dict[str, str]:
        """Requests can be served; else 503 with the reason."""
        parts.readiness.check()
        return {"status": "ready"}

    @router.get("/metrics")
    async def metrics() -> Response:
        parts.metrics.active.set(parts.calls.active)
        return Response(parts.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
