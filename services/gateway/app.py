"""The FastAPI application: its routes, error handlers, and the web console's static files at / and below /console."""

import os
from importlib.metadata import version
from pathlib import Path

from fastapi import Depends, FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

from services.gateway.api.anthropic_messages.replies import error_body
from services.gateway.api.app_context import AppContext
from services.gateway.api.errors import install_error_handlers
from services.gateway.api.openapi import errors, install_openapi
from services.gateway.api.response_models import ErrorBody
from services.gateway.api.routes.batches import batch_routes, file_routes
from services.gateway.api.routes.cluster import health_routes, state_routes
from services.gateway.api.routes.completions import MESSAGES_PATH, completion_routes, message_routes
from services.gateway.api.routes.requests import request_routes
from services.gateway.api.routes.tokens import token_routes

DIRECTORY = Path(__file__).resolve().parent / "console" / "static"
HEADERS = {
    "Cache-Control": "no-cache"  # revalidated by ETag, so no file is stale after an upgrade
}


class Assets(StaticFiles):
    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


def install_console(app: FastAPI) -> None:
    """Serve the console at / and its files below /console."""

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(DIRECTORY / "index.html", headers=HEADERS)

    app.mount("/console", Assets(directory=DIRECTORY))


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
    keyed = completion_routes, message_routes, token_routes, file_routes, batch_routes, request_routes, state_routes
    for routes in keyed:
        app.include_router(routes(context), dependencies=[Depends(context.admission.identify)])
    app.include_router(health_routes(context))
    install_console(app)
    install_error_handlers(app, {MESSAGES_PATH: error_body})
    install_openapi(app)
    return app
