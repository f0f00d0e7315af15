"""A resource that one task has at a time, and that its owners have in turn."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    """Start-time fair queueing: of the owners that wait, the one with the earliest virtual start goes first, which is
    where its last task ended, and not before that of the running task: idle time earns no credit. So an owner with many
    or long tasks delays another owner by its running task, and then both have the resource for the same time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._is_taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by owner
        self._virtual_s = 0.0  # virtual start of the last task
        self._ends_s: dict[str, float] = {}  # virtual end of each owner's last task, if later than that

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
        began_s, self._virtual_s = self._clock(), self._start_s(owner)
        try:
            yield
        finally:
            self._ends_s[owner] = self._virtual_s + self._clock() - began_s
            self._ends_s = {name: end_s for name, end_s in self._ends_s.items() if end_s > self._virtual_s}
            self._grant_next()

    def _start_s(self, owner: str) -> float:
        return max(self._ends_s.get(owner, 0.0), self._virtual_s)

    def _grant_next(self) -> None:
        while self._waiting:
            owner = min(self._waiting, key=self._start_s)
            tasks = self._waiting.pop(owner)
            waiting = deque(granted for granted in tasks if not granted.done())  # without tasks that have left
            if waiting:
                waiting.popleft().set_result(None)
                if waiting:
                    self._waiting[owner] = waiting
                return
        self._is_taken = False
