"""A resource that one task has at a time, and that its owners have in turn."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """An owner with many waiting tasks delays each other owner by one task at most."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by owner, the next one first

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Within the block, the task has the resource."""
        if self._is_taken:
            granted = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(granted)
            try:
                await granted
            except asyncio.CancelledError:
                if not granted.cancelled():  # granted at the same time
                    self._grant_next()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._grant_next()

    def _grant_next(self) -> None:
        while self._waiting:
            owner, tasks = self._waiting.popitem(last=False)
            waiting = deque(granted for granted in tasks if not granted.done())  # without tasks that have left
            if waiting:
                waiting.popleft().set_result(None)
                if waiting:
                    self._waiting[owner] = waiting
                return
        self._is_taken = False
