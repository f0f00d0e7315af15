"""Reads and validates a request's JSON body, bounded in size and time."""

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from services.gateway.api.body_budget import BodyBudget, HeldBody
from services.gateway.errors import ApiError

MAX_BODY_BYTES = 4 * 1024 * 1024
PART_TIMEOUT_S = 60.0  # between two parts of a body
MIN_BYTES_PER_S = 16_384  # slowest mean rate of a body after the first PART_TIMEOUT_S

B = TypeVar("B", bound=BaseModel)


@asynccontextmanager
async def read_body(request: Request, kind: type[B], budget: BodyBudget) -> AsyncIterator[B]:
    """The body, whose bytes count in the budget until the block ends.

    Raises: ApiError as `check_content_type`; errors of `bounded`; pydantic's ValidationError if it is not a `kind`.
    """
    check_content_type(request, "application/json")
    with budget.body() as held:
        parts = [part async for part in bounded(request, MAX_BODY_BYTES, budget, held)]
        budget.complete(held)
        data = b"".join(parts).removeprefix(BOM_UTF8)
        parts.clear()
        body = kind.model_validate_json(data)
        del data
        yield body


def check_content_type(request: Request, accepted: str) -> None:
    """Raises: ApiError 415. A form of another web site can post text/plain without asking, but no JSON."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != accepted:
        message = f"the body needs the header 'Content-Type: {accepted}'"
        raise ApiError(415, message, code="unsupported_content_type")


async def bounded(request: Request, max_bytes: int, budget: BodyBudget, held: HeldBody) -> AsyncGenerator[bytes]:
    """The parts of the body, which count in the budget.

    Raises: ApiError 413 if it is too large, declared or not; 400 if it is incomplete; 408 after PART_TIMEOUT_S without
    a part, or if it arrives more slowly than MIN_BYTES_PER_S; RetryLater if the bodies need too much memory.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large(max_bytes)
    size, parts, now_s = 0, request.stream(), asyncio.get_running_loop().time
    start_s = now_s()
    while True:
        due_s = min(now_s(), start_s + size / MIN_BYTES_PER_S) + PART_TIMEOUT_S
        try:
            async with asyncio.timeout_at(due_s) as held.waiting:
                part = await anext(parts, None)
        except ClientDisconnect:
            raise ApiError(400, "the body is incomplete") from None
        except TimeoutError:
            held.check()
            message, close = (
                f"the body arrived too slowly: {size} bytes in {now_s() - start_s:.0f} s",
                {"Connection": "close"},
            )
            raise ApiError(408, message, code="timeout", headers=close) from None
        if part is None:
            return
        size += len(part)
        if size > max_bytes:
            raise too_large(max_bytes)
        budget.hold(held, len(part))
        yield part


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
