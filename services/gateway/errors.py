"""Errors in OpenAI's format, {"error": {"message", "type", "param", "code"}}."""

import math
from collections.abc import Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

from shared.errors import RetryLater
from shared.messages.requests import Outcome, OutcomeStatus
from shared.tasks import run_until

T = TypeVar("T")

SLO_UNATTAINABLE = "slo_unattainable"  # code of a request that the scheduler refuses
_FORMS = ("pattern", "choices")  # fields of a request on the bus
MAX_NAME_LENGTH = 100  # characters of a client's field or model name that a message repeats
_TYPE_OF_STATUS: Mapping[int, str] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


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


async def unless_left(left: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises: ApiError 499 if the client, for whose leaving `left` waits, leaves first."""
    found = await run_until(left, work)
    if found is None:
        raise ApiError(499, "the client left", code="left")  # a client that has left does not receive it
    return found


def not_found(kind: str, name: str, param: str) -> ApiError:
    return ApiError(404, f"no {kind} has the id {name[:MAX_NAME_LENGTH]!r}", param=param, code="not_found")


def check_completed(outcome: Outcome, form_field: str) -> None:
    """`form_field`: the body's field for the form of the text, which has another name on the bus.

    Raises: ApiError if the outcome is not a completed one; RetryLater if the bus has lost the request.
    """
    error = outcome.error
    field = form_field if error and error.field in _FORMS else error.field if error else None
    message = error.message if error else f"the request was {outcome.status.value}"
    match outcome.status:
        case OutcomeStatus.REFUSED:
            wait_s = (error and error.retry_after_s) or 1.0
            raise ApiError(429, f"slo_ms: {message}", param="slo_ms", code=SLO_UNATTAINABLE, retry_after_s=wait_s)
        case OutcomeStatus.REJECTED:
            raise ApiError(400, message, param=field, code="rejected")
        case OutcomeStatus.CANCELLED:
            raise ApiError(410, message, code="cancelled")
        case OutcomeStatus.FAILED if not outcome.is_final:
            raise RetryLater(message)
        case OutcomeStatus.FAILED:
            raise ApiError(500, message, code="failed")
