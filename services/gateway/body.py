"""Reads a request's body: bounded in size, JSON, of the declared shape."""

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from services.gateway.errors import ApiError

MAX_BODY_BYTES = 4 * 1024 * 1024

B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, kind: type[B]) -> B:
    """Raises: ApiError 413 if the body is too large; pydantic's ValidationError if it is not a `kind`."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            if len(data) > MAX_BODY_BYTES:
                raise _too_large()
    except ClientDisconnect:
        raise ApiError(400, "the body is incomplete") from None
    return kind.model_validate_json(bytes(data))


def _too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")
