"""Reads and validates JSON bodies: each bounded in size and time, all at once in memory."""

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from services.gateway.errors import MAX_NAME_LENGTH, ApiError
from shared.errors import RetryLater

MAX_BODY_BYTES = 4 * 1024 * 1024
PART_TIMEOUT_S = 60.0  # between two parts of a body
MIN_BYTES_PER_S = 16_384  # slowest mean rate of a body after the first PART_TIMEOUT_S
SMALL_BODY_BYTES = 65_536  # the first bytes of each body are read without a limit of their rate
LARGE_BYTES_PER_S = 32 * 1024 * 1024  # of all bytes behind them together: copies occupy the event loop

B = TypeVar("B", bound=BaseModel)


@dataclass(eq=False, slots=True)
class HeldBody:
    """A body that the gateway has in memory."""

    size: int = 0  # bytes
    waiting: asyncio.Timeout | None = None  # of the last wait for bytes
    is_refused: bool = False

    def check(self) -> None:
        """Raises: RetryLater if the body is refused."""
        if self.is_refused:
            raise RetryLater("the bodies that the gateway reads take all the memory that they may have")


class BodyBudget:
    """Beyond `max_bytes` the largest unfinished body is refused; of sizes within the same power of two, the oldest one.
    So small bodies are read while large ones fill the memory, and a body that never ends is refused for a new one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._changed = asyncio.Event()  # of the held bytes, since the last wait for room
        self._may_read_s = 0.0  # when the rate allows the next read of a large body; event loop's clock
        self._unfinished: dict[HeldBody, None] = {}  # the earliest first

    @contextmanager
    def body(self) -> Iterator[HeldBody]:
        """A body, which is held until the block ends."""
        body = HeldBody()
        self._unfinished[body] = None
        try:
            yield body
        finally:
            self.complete(body)
            self._bytes -= body.size
            self._changed.set()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait for room for a body that is complete and not counted yet, such as a line of a stored file, and hold it
        until the block ends. `size`: at most the budget."""
        while self._bytes + size > self._max_bytes:
            self._changed.clear()
            await self._changed.wait()
        with self.body() as body:
            self.complete(body)
            self.hold(body, size)
            yield

    def hold(self, body: HeldBody, change: int) -> None:
        """Count `change` more bytes of a body (negative: it gave them back), and refuse bodies if there are too many.

        Raises: RetryLater if this one is refused.
        """
        body.check()
        body.size += change
        self._bytes += change
        self._changed.set()
        while self._bytes > self._max_bytes and self._unfinished:
            largest = max(self._unfinished, key=lambda each: each.size.bit_length())
            self._bytes -= largest.size
            self.complete(largest)
            largest.size, largest.is_refused = 0, True
            if largest.waiting is not None:
                with suppress(RuntimeError):  # that wait has ended
                    largest.waiting.reschedule(asyncio.get_running_loop().time())  # ends it with a TimeoutError
        body.check()

    async def pace(self, size: int) -> None:
        """Count `size` bytes of a large body, and wait until the rate that all such bodies share allows the next."""
        now_s = asyncio.get_running_loop().time()
        self._may_read_s = max(self._may_read_s, now_s) + size / LARGE_BYTES_PER_S
        await asyncio.sleep(self._may_read_s - now_s)

    def complete(self, body: HeldBody) -> None:
        """All of the body is read: it is not refused any more."""
        self._unfinished.pop(body, None)


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
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
        message = f"the body must not be compressed, but its Content-Encoding is {coding[:MAX_NAME_LENGTH]!r}"
        raise ApiError(415, message, code="unsupported_content_type")
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
            message = f"the body arrived too slowly: {size} bytes in {now_s() - start_s:.0f} s"
            raise ApiError(408, message, code="timeout", headers={"Connection": "close"}) from None
        if part is None:
            return
        size += len(part)
        if size > max_bytes:
            raise too_large(max_bytes)
        budget.hold(held, len(part))
        yield part
        if size > SMALL_BODY_BYTES:
            await budget.pace(len(part))
            held.check()


def too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
