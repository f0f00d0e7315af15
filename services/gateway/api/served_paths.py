"""The paths that clients make of a base URL with a part too many or too few."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_API = "batches|chat/completions|completions|decisions|files|fim/completions|messages|models|requests|responses"
_BASE = re.compile(rf"^/+(?:(?:v1|api|openai|openai/deployments/[^/]+)/+)*(?=(?:{_API})(?:/|$))")


class ServedPaths:
    """Serves `/v1/v1/models`, `/models`, `/v1/models/`, and `/openai/v1/…` and `/openai/deployments/NAME/…`, as Groq's
    and Azure's clients have them, as the path below `/v1`. There, HEAD is GET: uvicorn leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = _BASE.sub("/v1/", scope["path"].rstrip("/") or "/")
            is_head = scope["method"] == "HEAD" and path.startswith("/v1/")
            scope = {**scope, "path": path, "method": "GET" if is_head else scope["method"]}
        await self._app(scope, receive, send)
