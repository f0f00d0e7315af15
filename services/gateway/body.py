"""Reads a request's body: bounded in size, JSON, of the declared shape."""

from collections.abc import AsyncGenerator
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from services.gateway.errors import ApiError

MAX_BODY_BYTES = 4 * 1024 * 1024

B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, kind: type[B]) -> B:
    """Raises: ApiError 413 if the body is too large; pydantic's ValidationError if it is not a `kind`."""
    data = bytearray()
    async for part in bounded(request, MAX_BODY_BYTES):
        data += part
    return kind.model_validate_json(bytes(data))


async def bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
    """The body, part by part. Raises: ApiError 413 if it is larger, declared or not; 400 if it breaks off."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large(max_bytes)
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise too_large(max_bytes)
            yield part
    except ClientDisconnect:
        raise ApiError(400, "the body is incomplete") from None


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
