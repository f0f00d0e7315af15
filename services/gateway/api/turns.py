"""Turns of owners at a resource, so that one with many or long tasks does not keep the others from it."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    """A number of tasks at a time, each of another owner, by start-time fair queueing: of the owners that wait, the one
    with the earliest virtual start goes first, which is where its last task ended, and not before that of the last task
    that began: idle time earns no credit. So an owner with many or long tasks delays another owner by its running task,
    and then both have the same time."""

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`slots`: tasks at a time; `clock`: seconds."""
        self._slots = slots
        self._clock = clock
        self._running: set[str] = set()  # owners
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by owner
        self._virtual_s = 0.0  # virtual start of the last task
        self._ends_s: dict[str, float] = {}  # virtual end of each owner's last task, if later than that

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Within the block, the owner has no other task, and together at most `slots` run."""
        if owner in self._running or len(self._running) == self._slots:
            granted = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(granted)
            try:
                await granted
            except asyncio.CancelledError:
                if not granted.cancelled():  # granted at the same time
                    self._end(owner)
                raise
        self._running.add(owner)
        began_s, start_s = self._clock(), self._start_s(owner)
        self._virtual_s = start_s
        try:
            yield
        finally:
            self._ends_s[owner] = start_s + self._clock() - began_s
            self._ends_s = {name: end_s for name, end_s in self._ends_s.items() if end_s > self._virtual_s}
            self._end(owner)

    def _start_s(self, owner: str) -> float:
        return max(self._ends_s.get(owner, 0.0), self._virtual_s)

    def _end(self, owner: str) -> None:
        self._running.discard(owner)
        while len(self._running) < self._slots and (
            ready := [name for name in self._waiting if name not in self._running]
        ):
            first = min(ready, key=self._start_s)
            tasks = deque(granted for granted in self._waiting.pop(first) if not granted.done())  # some may have left
            if tasks:
                tasks.popleft().set_result(None)
                self._running.add(first)
                if tasks:
                    self._waiting[first] = tasks
