"""Reads and validates a request's JSON body, bounded in size and time."""

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from services.gateway.api.errors import ApiError

MAX_BODY_BYTES = 4 * 1024 * 1024
PART_TIMEOUT_S = 60.0  # between two parts of a body

B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, kind: type[B]) -> B:
    """Raises: ApiError as `bounded`; pydantic's ValidationError if the body is not a `kind`."""
    data = bytearray()
    async for part in bounded(request, MAX_BODY_BYTES):
        data += part
    return kind.model_validate_json(bytes(data))


async def bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
    """The parts of the body.

    Raises: ApiError 413 if it is too large, declared or not; 400 if it is incomplete; 408 after PART_TIMEOUT_S without
    a part.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large(max_bytes)
    size, parts = 0, request.stream()
    while True:
        try:
            async with asyncio.timeout(PART_TIMEOUT_S):
                part = await anext(parts, None)
        except ClientDisconnect:
            raise ApiError(400, "the body is incomplete") from None
        except TimeoutError:
            message, close = f"no part of the body arrived for {PART_TIMEOUT_S:g} s", {"Connection": "close"}
            raise ApiError(408, message, code="timeout", headers=close) from None
        if part is None:
            return
        size += len(part)
        if size > max_bytes:
            raise too_large(max_bytes)
        yield part


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
