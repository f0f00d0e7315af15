"""Fair turns at a resource: an owner with many or long tasks does not keep the others from it."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    """At most `slots` tasks at a time, and one of each owner, by start-time fair queueing.

    A task's virtual start is the later of two times: the virtual end of its owner's last task, and the virtual start of
    the task that began last. Its virtual end is its virtual start plus its run time. Of the owners that wait, the one
    with the earliest virtual start is next. So idle owners gain no credit, and busy owners have equal shares of the
    time.
    """

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`slots`: tasks at a time; `clock`: seconds."""
        self._slots = slots
        self._clock = clock
        self._running: set[str] = set()  # owners
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by owner
        self._last_start_s = 0.0  # virtual start of the task that began last
        self._ends_s: dict[str, float] = {}  # virtual end of each owner's last task, if after it

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for the owner's turn. Within the block it has no other task, and at most `slots` owners have one."""
        if owner in self._running or len(self._running) == self._slots:
            granted = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(granted)
            try:
                await granted
            except asyncio.CancelledError:
                if not granted.cancelled():  # the turn was granted before the cancellation arrived
                    self._release(owner)
                raise
        self._running.add(owner)
        began_s, start_s = self._clock(), self._start_s(owner)
        self._last_start_s = start_s
        try:
            yield
        finally:
            self._ends_s[owner] = start_s + self._clock() - began_s
            self._ends_s = {name: end_s for name, end_s in self._ends_s.items() if end_s > self._last_start_s}
            self._release(owner)

    def _start_s(self, owner: str) -> float:
        return max(self._ends_s.get(owner, 0.0), self._last_start_s)

    def _release(self, owner: str) -> None:
        self._running.discard(owner)
        while len(self._running) < self._slots and (
            ready := [name for name in self._waiting if name not in self._running]
        ):
            first = min(ready, key=self._start_s)
            tasks = deque(each for each in self._waiting.pop(first) if not each.done())  # without cancelled ones
            if tasks:
                tasks.popleft().set_result(None)
                self._running.add(first)
                if tasks:
                    self._waiting[first] = tasks
