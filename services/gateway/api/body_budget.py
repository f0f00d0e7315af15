"""Bounds the memory of all bodies that the gateway reads at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from shared.errors import RetryLater


class HeldBody:
    """The bytes of one body that the gateway has in memory."""

    def __init__(self) -> None:
        self.size = 0
        self.waiting: asyncio.Timeout | None = None  # of the last wait for bytes
        self._is_refused = False

    def refuse(self) -> None:
        """Count none of its bytes, and end its wait for more with a TimeoutError."""
        self.size, self._is_refused = 0, True
        if self.waiting is not None:
            with suppress(RuntimeError):  # that wait has ended
                self.waiting.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        """Raises: RetryLater if the body is refused."""
        if self._is_refused:
            raise RetryLater("the bodies that the gateway reads take all the memory that they may have")


class BodyBudget:
    """Beyond `max_bytes` the largest unfinished body is refused; of sizes within the same power of two, the oldest one.
    So small bodies are read while large ones fill the memory, and a body that never ends is refused for a new one."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._changed = asyncio.Event()  # of the held bytes, since the last wait for room
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
            largest.refuse()
        body.check()

    def complete(self, body: HeldBody) -> None:
        """All of the body is read: it is not refused any more."""
        self._unfinished.pop(body, None)
