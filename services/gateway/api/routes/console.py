"""The console: GET / and what its page loads, files as they are."""

import os
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

DIRECTORY = Path(__file__).resolve().parents[2] / "console" / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",  # nothing from elsewhere
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # asked again by its ETag: never a stale file after an upgrade
}


class Assets(StaticFiles):
    """Files with our headers."""

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
