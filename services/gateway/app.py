"""The application: its routes, and one shape for every error."""

from importlib.metadata import version

from fastapi import Depends, FastAPI

from services.gateway.api.errors import install_handlers
from services.gateway.api.openapi import ERRORS, document
from services.gateway.api.routes.batches import batch_routes, file_routes
from services.gateway.api.routes.cluster import cluster_routes
from services.gateway.api.routes.completions import completion_routes
from services.gateway.api.routes.console import install_console
from services.gateway.api.routes.health import health_routes
from services.gateway.api.routes.models import model_routes
from services.gateway.api.routes.requests import request_routes
from services.gateway.app_context import AppContext


def build_app(parts: AppContext) -> FastAPI:
    app = FastAPI(
        title="DiLaServe",
        version=version("dilaserve"),
        description="OpenAI's API for diffusion language models, with SLOs.",
        redirect_slashes=False,
        docs_url=None,  # its pages load scripts from elsewhere, beside a console that keeps a key
        redoc_url=None,
        responses=ERRORS,
        telemetry={"operation_spans": False},  # a span for each HTTP request, where a collector is set
    )
    for routes in (completion_routes, file_routes, batch_routes, model_routes, request_routes, cluster_routes):
        app.include_router(routes(parts), dependencies=[Depends(parts.gate.identify)])
    app.include_router(health_routes(parts))
    install_console(app)
    install_handlers(app)
    document(app)
    return app
