"""Errors in Anthropic's form: {"type": "error", "error": {"type", "message"}}."""

from collections.abc import Mapping

from services.gateway.api.replies_and_chunks import Json
from services.gateway.errors import ApiError

_TYPE_OF_STATUS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError) -> Json:
    """The error; `param` and `code` as in OpenAI's form."""
    kind = _TYPE_OF_STATUS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    body: Json = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    if error.param == "thread":  # by which Anthropic's clients continue without threads
        body["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": body}
