"""The FastAPI application: its routes and error handlers."""

from importlib.metadata import version

from fastapi import Depends, FastAPI

from services.gateway.api.anthropic_messages.replies import error_body
from services.gateway.api.app_context import AppContext
from services.gateway.api.errors import install_error_handlers
from services.gateway.api.openapi import errors, install_openapi
from services.gateway.api.response_models import ErrorBody
from services.gateway.api.routes.batches import batch_routes, file_routes
from services.gateway.api.routes.cluster import health_routes, state_routes
from services.gateway.api.routes.completions import MESSAGES_PATH, completion_routes, message_routes
from services.gateway.api.routes.console import install_console
from services.gateway.api.routes.requests import request_routes
from services.gateway.api.routes.tokens import token_routes


def build_app(context: AppContext) -> FastAPI:
    app = FastAPI(
        title="DiLaServe",
        version=version("dilaserve"),
        description="OpenAI's API for diffusion language models, with SLOs.",
        redirect_slashes=False,
        docs_url=None,  # these pages load third-party scripts on the origin of a console that stores a key
        redoc_url=None,
        responses=errors(ErrorBody),
        telemetry={"operation_spans": False},  # a span for each HTTP request, where a collector is set
    )
    with_key = (
        *(completion_routes, message_routes, token_routes, file_routes, batch_routes, request_routes, state_routes),
    )
    for routes in with_key:
        app.include_router(routes(context), dependencies=[Depends(context.admission.identify)])
    app.include_router(health_routes(context))
    install_console(app)
    install_error_handlers(app, {MESSAGES_PATH: error_body})
    install_openapi(app)
    return app
