"""GET / and /console: the web console's static files."""

import os
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

DIRECTORY = Path(__file__).resolve().parents[2] / "console" / "static"
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
