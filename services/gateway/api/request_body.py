"""Reads a request's body: bounded in size, JSON, of the declared shape."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from services.gateway.api.errors import ApiError

MAX_BODY_BYTES = 4 * 1024 * 1024
SILENT_S = 60.0  # a client that sends nothing for so long, amid a body, has gone

B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, kind: type[B]) -> B:
    """Raises: ApiError 413 if the body is too large; pydantic's ValidationError if it is not a `kind`."""
    data = bytearray()
    async for part in bounded(request, MAX_BODY_BYTES):
        data += part
    return kind.model_validate_json(bytes(data))


async def bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
    """The body, part by part.

    Raises: ApiError 413 if it is larger, declared or not; 400 if it breaks off; 408 if no more of it comes.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large(max_bytes)
    size = 0
    parts = request.stream()
    while (part := await _next_of(parts)) is not None:
        size += len(part)
        if size > max_bytes:
            raise too_large(max_bytes)
        yield part


async def _next_of(parts: AsyncGenerator[bytes]) -> bytes | None:
    """None at the end. Raises: ApiError 400 or 408."""
    try:
        async with asyncio.timeout(SILENT_S):
            return await anext(parts, None)
    except ClientDisconnect:
        raise ApiError(400, "the body is incomplete") from None
    except TimeoutError:
        message, close = f"no more of the body has come for {SILENT_S:g} s", {"Connection": "close"}
        raise ApiError(408, message, code="timeout", headers=close) from None


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
