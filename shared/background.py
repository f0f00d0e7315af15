"""What nobody waits for, done a moment after what somebody does.

Bytes leave a process when its event loop has done all that is ready: whatever else a handler does at once delays the
message that it has just sent.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import nats.errors
import structlog

log = structlog.get_logger(__name__)

DEFER_S = 0.001

Action = Callable[[], Awaitable[None] | None]


class DeferredTasks:
    """Actions in the order in which they were given."""

    def __init__(self) -> None:
        self._waiting: deque[Action] = deque()
        self._given = asyncio.Event()

    def defer(self, action: Action) -> None:
        """Call `action`, and await what it returns, in LATER_S."""
        self._waiting.append(action)
        self._given.set()

    async def run(self) -> None:
        """Do what is given until cancelled. Raises: whatever an action raises, but for the bus's errors."""
        while True:
            await self._given.wait()
            self._given.clear()
            await asyncio.sleep(DEFER_S)
            await self.run_now()

    async def run_now(self) -> None:
        """Do at once what still waits."""
        while self._waiting:
            try:
                doing = self._waiting.popleft()()
                if doing is not None:
                    await doing
            except nats.errors.Error as error:
                log.warning("left undone", error=repr(error))
