"""Errors in OpenAI's format, {"error": {"message", "type", "param", "code"}}, or in that of a path's API."""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

from shared.errors import BadInput, QueueFull, RetryLater, StorageFull, TooLong
from shared.messages.requests import Outcome, OutcomeStatus

log = structlog.get_logger(__name__)

RETRY_AFTER_S = 2  # Retry-After of a 503, and of a 429 because the cell is full
QUEUE_FULL = "the cell has as many unfinished requests as it may hold"
MAX_NAME_LENGTH = 100  # characters of a client's field or model name that a message repeats


@dataclass(eq=False)
class ApiError(Exception):
    """An error reply. `param` names the wrong field."""

    status: int
    message: str
    _: KW_ONLY
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        super().__init__(self.message)
        if self.retry_after_s is not None:
            self.headers = {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}

    def body(self) -> dict[str, Any]:
        kind = _TYPE_OF_STATUS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def not_found(kind: str, name: str, param: str) -> ApiError:
    return ApiError(404, f"no {kind} has the id {name[:MAX_NAME_LENGTH]!r}", param=param, code="not_found")


def as_api_error(error: Exception) -> ApiError:
    """The reply to any error; 500 if it is unexpected."""
    match error:
        case ApiError():
            return error
        case BadInput():
            return ApiError(400, error.message, param=error.field, code=_code_of(error))
        case RetryLater():
            return _retry_later(error)
        case ValidationError() | RequestValidationError():
            first = error.errors()[0]
            in_url = isinstance(error, RequestValidationError)  # its location then begins with "path" or "query"
            return _invalid(first, first["loc"][in_url:])
        case HTTPException():
            code = _CODE_OF_STATUS.get(error.status_code)
            return ApiError(error.status_code, error.detail, code=code, headers=error.headers)  # such as Allow
        case _:
            return ApiError(500, "internal error; see the gateway's log", code="internal_error")


def _code_of(error: BadInput) -> str:
    return "context_length_exceeded" if isinstance(error, TooLong) else "invalid_value"


def _retry_later(error: RetryLater) -> ApiError:
    if isinstance(error, QueueFull):
        return ApiError(429, QUEUE_FULL, code="queue_full", retry_after_s=RETRY_AFTER_S)
    code = "storage_full" if isinstance(error, StorageFull) else "unavailable"
    return ApiError(503, str(error), code=code, retry_after_s=RETRY_AFTER_S)


def log_internal_error(error: Exception, request_id: str) -> None:
    """Log the traceback of an unexpected error that is not raised further."""
    if as_api_error(error).code == "internal_error":
        log.error("request failed", request_id=request_id, exc_info=error)


def check_completed(outcome: Outcome) -> None:
    """Raises: ApiError if the outcome is not a completed one."""
    error = outcome.error
    message = error.message if error else f"the request was {outcome.status.value}"
    match outcome.status:
        case OutcomeStatus.REJECTED:
            raise ApiError(400, message, param=error.field if error else None, code="rejected")
        case OutcomeStatus.CANCELLED:
            raise ApiError(410, message, code="cancelled")
        case OutcomeStatus.FAILED:
            raise ApiError(500, message, code="failed")


def install_error_handlers(app: FastAPI, forms: Mapping[str, Callable[[ApiError], dict[str, Any]]]) -> None:
    """Have every error of `app` answered in OpenAI's format, or by the form for the beginning of its path."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        reply = as_api_error(error)
        form = next((form for path, form in forms.items() if request.url.path.startswith(path)), ApiError.body)
        return JSONResponse(form(reply), reply.status, reply.headers)

    for kind in (ApiError, BadInput, RetryLater, ValidationError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


_TYPE_OF_STATUS: Mapping[int, str] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODE_OF_STATUS: Mapping[int, str] = {404: "not_found", 405: "method_not_allowed"}

# Code and message by pydantic's error type; {param} is the field, {reason} is pydantic's own message. Other types have
# the code invalid_value and the text of _WRONG, or pydantic's own.
_INVALID: Mapping[str, tuple[str, str]] = {
    "json_invalid": ("invalid_json", "the body is not valid JSON: {reason}"),
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
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be finite",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
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


def _invalid(error: ErrorDetails | Mapping[str, Any], loc: tuple[int | str, ...]) -> ApiError:
    context = error.get("ctx", {})
    param = _path((*loc, context["name"]) if error["type"] in {"unsupported_field", "wrong_field"} else loc)
    reason = str(error["msg"]).removeprefix("Invalid JSON: ").removeprefix("Value error, ")
    reason = reason.replace("Input should be", "must be")
    if error["type"] in _WRONG:
        reason = _WRONG[error["type"]].format(**context)
    code, template = _INVALID.get(error["type"], ("invalid_value", "{param} {reason}"))
    return ApiError(400, template.format(param=param or "the body", reason=reason), param=param or None, code=code)


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[0].content` for ("messages", 0, "content"). A client chooses the name of an unknown field."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path[:MAX_NAME_LENGTH].encode("utf-8", "replace").decode()
