"""Around the routes: the paths that clients make of a base URL, and protection from web pages of other sites.

Such pages run in a client's browser: DNS rebinding, cross-site requests.
"""

import re
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.api.other_fields import ADJUSTED_HEADER, IGNORED_HEADER
from services.gateway.errors import MAX_NAME_LENGTH, ApiError
from services.gateway.settings import GatewaySettings
from shared.urls import LOOPBACK_NAME, is_loopback

_API = "batches|chat/completions|completions|decisions|files|fim/completions|messages|models|requests|responses"
_BASE = re.compile(rf"^/+(?:(?:v1|api|openai|openai/deployments/[^/]+)/+)*(?=(?:{_API})(?:/|$))")


def with_served_path(scope: Scope) -> Scope:
    """Serve `/v1/v1/models`, `/models`, `/v1/models/`, and `/openai/v1/…` and `/openai/deployments/NAME/…`, as Groq's
    and Azure's clients have them, as the path below `/v1`. There, HEAD is GET: uvicorn leaves out the body."""
    path = _BASE.sub("/v1/", scope["path"].rstrip("/") or "/")
    is_head = scope["method"] == "HEAD" and path.startswith("/v1/")
    return {**scope, "path": path, "method": "GET" if is_head else scope["method"]}


ANY = "*"
MAX_HOST_LENGTH = 512  # characters that are read: a bound on the cached hosts
SECURITY_HEADERS = [  # of every response
    ("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
]


class WebGuard:
    """Refuses a foreign `Host` or `Origin` with 403 before any route runs, and adds the headers of CORS. uvicorn passes
    it requests only: no WebSockets, no lifespan."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self._origins = frozenset(origin.lower() for origin in settings.allowed_origins)
        hosts = settings.allowed_hosts or (() if is_loopback(settings.host) else (ANY,))
        # An address is always allowed: rebinding needs a name. So is an absent host, which no browser sends.
        self._hosts = frozenset({"", LOOPBACK_NAME, *(host.lower() for host in hosts)})
        self._app = app
        if self._origins:
            self._app = CORSMiddleware(
                app,
                allow_origins=sorted(self._origins),
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Retry-After", IGNORED_HEADER, ADJUSTED_HEADER],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(Headers(scope=scope))
        except ApiError as error:
            await JSONResponse(error.body(), error.status)(scope, receive, send)
        else:
            await self._app(with_served_path(scope), receive, send)

    def _check(self, headers: Headers) -> None:
        """Raises: ApiError 403 if the host or the origin is not allowed."""
        host = headers.get("host", "").lower()
        if not {ANY, _name_of(host[:MAX_HOST_LENGTH])} & self._hosts:
            message = f"the host {host[:MAX_NAME_LENGTH]!r} is not allowed; DILASERVE_ALLOWED_HOSTS lists allowed names"
            raise ApiError(403, message, code="host_not_allowed")
        origin = headers.get("origin", "").lower()
        if origin and not {origin, ANY} & {f"http://{host}", f"https://{host}", *self._origins}:
            message = f"the origin {origin[:MAX_NAME_LENGTH]!r} is not allowed; DILASERVE_ALLOWED_ORIGINS lists others"
            raise ApiError(403, message, code="origin_not_allowed")


@lru_cache(maxsize=1024)
def _name_of(host: str) -> str:
    """The name in a `Host` header, without its port; empty if it is an address. An invalid header stays as it is."""
    name = host
    with suppress(ValueError):
        name = urlsplit(f"//{host}").hostname or host
        ip_address(name)
        return ""
    return name
