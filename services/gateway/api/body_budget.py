"""Bounds the memory of all bodies that the gateway reads at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from shared.errors import RetryLater


class BodyBudget:
    """Beyond `max_bytes` the largest body that is being read is refused, of similar ones the earliest: small bodies are
    read while large ones fill the memory, and a body that never ends makes room for a new one of its size."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._freed = asyncio.Event()  # since the last wait for room
        self._unfinished: dict[HeldBody, None] = {}  # the earliest first

    @contextmanager
    def body(self) -> Iterator["HeldBody"]:
        """A body, which is held until the block ends."""
        body = HeldBody(self)
        self._unfinished[body] = None
        try:
            yield body
        finally:
            self.end(body)
            self.add(-body.size)

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait until there is room for a body that was read before, and hold it until the block ends. `size`: at most
        the budget."""
        while self._bytes + size > self._max_bytes:
            self._freed.clear()
            await self._freed.wait()
        self._bytes += size
        try:
            yield
        finally:
            self.add(-size)

    def add(self, size: int) -> None:
        """Count more bytes, or fewer, and refuse bodies if there are too many."""
        self._bytes += size
        self._freed.set()
        while self._bytes > self._max_bytes and self._unfinished:
            largest = max(self._unfinished, key=lambda body: body.size.bit_length())
            self._bytes -= largest.size
            self.end(largest)
            largest.refuse()

    def end(self, body: "HeldBody") -> None:
        """The body is complete, or is no longer read: it is not refused any more."""
        self._unfinished.pop(body, None)


class HeldBody:
    """The bytes of one body that the gateway has in memory."""

    def __init__(self, budget: BodyBudget) -> None:
        self.size = 0
        self._budget = budget
        self._is_refused = False
        self._waiting: asyncio.Timeout | None = None

    def hold(self, size: int) -> None:
        """Count bytes that were read. Raises: RetryLater if the body is refused."""
        self.size += size
        self._budget.add(size)
        self._check()

    def drop(self, size: int) -> None:
        """The bytes were stored elsewhere."""
        if not self._is_refused:
            self.size -= size
            self._budget.add(-size)

    def end(self) -> None:
        """The body is complete."""
        self._budget.end(self)

    def refuse(self) -> None:
        """Count none of its bytes, and end its wait for more."""
        self.size, self._is_refused = 0, True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def waiting(self, due_s: float) -> AsyncIterator[None]:
        """The body waits for its next bytes within the block, until `due_s` by the event loop's clock.

        Raises: TimeoutError after that; RetryLater if the body is refused.
        """
        self._check()
        async with asyncio.timeout_at(due_s) as timeout:
            self._waiting = timeout
            try:
                yield
            finally:
                self._waiting = None
                self._check()

    def _check(self) -> None:
        if self._is_refused:
            raise RetryLater("the bodies that the gateway reads take all the memory that they may have")
