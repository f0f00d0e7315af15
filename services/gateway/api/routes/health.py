"""GET /health, /ready and /metrics. The first two also answer HEAD, which some load balancers send."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.gateway.api.app_context import AppContext
from services.gateway.api.response_models import Status


def health_routes(context: AppContext) -> APIRouter:
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Status:
        """200 while the process is alive."""
        return Status(status="ok")

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready() -> Status:
        """200 if requests for a model can be served, else 503 with the reasons."""
        context.check_ready()
        return Status(status="ready")

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        reasons = [reason for cell in context.cells for reason in cell.readiness.reasons()]
        context.metrics.active.set(sum(cell.inflight.count for cell in context.cells))
        context.metrics.set_readiness(reasons, context.own_cell.readiness.storage)
        led = {model.name: [cell.readiness.stats for cell in model.cells] for model in context.models}
        context.metrics.vllm.set_load({name: [each for each in cells if each] for name, cells in led.items()})
        return Response(generate_latest(context.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router
