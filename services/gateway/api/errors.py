"""The reply to each error, in OpenAI's format or in that of a path's API."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from services.gateway.errors import MAX_NAME_LENGTH, ApiError
from shared.bus.codec import half_pair
from shared.errors import BadInput, RetryLater, StorageFull, TooLong

log = structlog.get_logger(__name__)

# By the beginning of a path of another server's API, what to use instead
UNSUPPORTED: Mapping[str, str] = {
    "/v1/embeddings": "the served model gives no embeddings",
    "/api/": "Ollama's API is not served; send OpenAI's chats to /v1/chat/completions",
    "/v1/chat/completions/": "chats are not stored; GET /v1/requests/{id} has the outcome for a day",
    "/v1/responses/": "responses can only be created; GET /v1/requests/{id} has the outcome for a day",
    "/v1/messages/batches": "Anthropic's batches are not supported; send a file of chats to /v1/files, then its id to "
    "/v1/batches, as OpenAI's batch API has it",
}
# Agents find out by Anthropic's words or by OpenAI's that they must shorten the conversation: clients hide the code
TOO_LONG = "prompt is too long for the model's maximum context length"
RETRY_AFTER_S = 2  # Retry-After of a 503


def as_api_error(error: Exception) -> ApiError:
    """The reply to any error; 500 if it is unexpected."""
    match error:
        case ApiError():
            return error
        case TooLong():
            message = f"{TOO_LONG}: {error.message}"
            return ApiError(400, message, param=error.field, code="context_length_exceeded")
        case BadInput():
            return ApiError(400, error.message, param=error.field, code="invalid_value")
        case RetryLater():
            code = "storage_full" if isinstance(error, StorageFull) else "unavailable"
            return ApiError(503, str(error), code=code, retry_after_s=RETRY_AFTER_S)
        case ValidationError() | RequestValidationError():
            in_url = isinstance(error, RequestValidationError)  # a location then begins with "path" or "query"
            return _invalid(error.errors(), int(in_url))
        case _:
            headers = {"Connection": "close"}  # as uvicorn closes it after an error that Starlette raises further
            return ApiError(500, "internal error; see the gateway's log", code="internal_error", headers=headers)


def log_internal_error(error: Exception, request_id: str) -> None:
    """Log the traceback of an unexpected error that is not raised further."""
    if as_api_error(error).code == "internal_error":
        log.error("request failed", request_id=request_id, exc_info=error)


def install_error_handlers(app: FastAPI, forms: Mapping[str, Callable[[ApiError], dict[str, Any]]]) -> None:
    """Have every error of `app` answered in OpenAI's format, or by the form for the beginning of its path."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        reply = _no_route(request, error) if isinstance(error, HTTPException) else as_api_error(error)
        form = next((form for path, form in forms.items() if request.url.path.startswith(path)), ApiError.body)
        return JSONResponse(form(reply), reply.status, reply.headers)

    for kind in (ApiError, BadInput, RetryLater, ValidationError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


def _no_route(request: Request, error: HTTPException) -> ApiError:
    """The reply to a path or a method that no route has."""
    path = request.url.path[:MAX_NAME_LENGTH]
    for beginning, message in UNSUPPORTED.items():
        if path.startswith(beginning):
            return ApiError(404, message, code="unsupported_endpoint")
    if error.status_code != 405:
        message = f"the path {path!r} does not exist; GET /openapi.json lists the paths"
        return ApiError(404, message, code="not_found")
    allowed = _allowed_methods(request) or (error.headers or {}).get("Allow", "")
    message = f"the path {path!r} does not support the method {request.method[:MAX_NAME_LENGTH]}; accepted: {allowed}"
    return ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed})


def _allowed_methods(request: Request) -> str:
    """The methods of all routes of the path, comma-separated; empty if it is a file of the console."""
    routes = [route for route in request.app.routes if not isinstance(route, Mount)]
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
    scopes = {method: {**request.scope, "method": method} for method in methods}
    return ", ".join(
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)
    )


# Code and message by pydantic's error type; {param} is the field, {reason} that of `_wrong`. Other types have the
# code invalid_value.
_INVALID: Mapping[str, tuple[str, str]] = {
    "json_invalid": ("invalid_json", "the body must be a JSON object; it is not valid JSON {reason}"),
    "model_type": ("invalid_type", "{param} must be a JSON object"),
    "missing": ("missing_required_parameter", "{param} is required"),
    "extra_forbidden": ("unknown_parameter", "{param} is not a known field"),
    "none_required": ("unsupported_parameter", "{param} is not supported"),
    "literal_error": ("unsupported_value", "{param} {reason}"),
    "unsupported": ("unsupported_value", "{param} {reason}"),
    "unsupported_field": ("unsupported_value", "{reason}"),
    "wrong_field": ("invalid_value", "{param} {reason}"),
}
_WRONG: Mapping[str, str] = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("int_from_float", "int_parsing", "int_type"), "must be an integer"),
    "dict_type": "must be an object",
    "finite_number": "must be finite",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "must be a string",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
}

# The name of a member of a union: pydantic has it in the location of an error. No field has such a name.
_MEMBER = re.compile(r"[a-z-]+\[.*\]|bool|float|int|str|[A-Z]\w*", re.DOTALL)
_OWN = ("unsupported", "unsupported_field", "wrong_field")  # types of own errors; the last two name a field
_WITH_FREE_KEYS = "metadata"  # an object with keys of the client's choice

_Loc = tuple[int | str, ...]


def _invalid(errors: Sequence[Any], skipped: int) -> ApiError:
    """The reply to the first wrong field. Of a union, pydantic reports errors for every member: the first one of the
    gateway's own checks counts, else those with the deepest location. `skipped`: the parts of a location before it."""
    found = [(tuple(each["loc"][skipped:]), each) for each in errors]
    first, same = found[0][0], found[:1]
    if at := _members(first)[:1]:
        same = [each for each in found if _members(each[0])[:1] == at and each[0][: at[0]] == first[: at[0]]]
    depth = max(len(loc) for loc, _ in same)
    own = [each for each in same if each[1]["type"] in _OWN]
    best = own[:1] or [each for each in same if len(each[0]) == depth]
    reasons = dict.fromkeys(_reason(each) for _, each in best)
    reason = " or ".join(text.removeprefix("must be ") if i else text for i, text in enumerate(reasons))
    param, kind = _param(*best[0]), best[0][1]["type"]
    code, template = _INVALID.get(kind, ("invalid_value", "{param} {reason}"))
    return ApiError(400, template.format(param=param or "the body", reason=reason), param=param or None, code=code)


def _reason(error: ErrorDetails) -> str:
    context, kind = error.get("ctx", {}), error["type"]
    if kind in _WRONG:
        whole = {name: int(limit) for name, limit in context.items() if isinstance(limit, float) and limit.is_integer()}
        return re.sub(r"\b1 (character|item)s$", r"1 \1", _WRONG[kind].format(**(context | whole)))
    if kind != "json_invalid":
        reason = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        return reason.replace("must be False", "must be false")
    reason, sent = str(context["error"]), error.get("input")
    reason = reason[reason.rfind("at line") :].replace(" column", ", column")
    half = half_pair(sent) if isinstance(sent, bytes) else ""
    return f"{reason}: {half}" if half else reason


def _members(loc: _Loc) -> list[int]:
    """The indices of members of unions."""
    parts = enumerate(loc if loc[:1] != (_WITH_FREE_KEYS,) else ())
    return [i for i, part in parts if isinstance(part, str) and _MEMBER.fullmatch(part)]


def _param(loc: _Loc, error: ErrorDetails) -> str:
    """The field, such as `messages[0].content` for ("messages", 0, "content")."""
    members, path = _members(loc), ""
    parts = [part for i, part in enumerate(loc) if part != "[key]" and i not in members]
    for part in [*parts, error["ctx"]["name"]] if error["type"] in _OWN[1:] else parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    # The client chooses the name of an unknown field: it may be long, or have half of a surrogate pair
    return path[:MAX_NAME_LENGTH].encode("utf-8", "replace").decode()
