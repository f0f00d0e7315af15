"""Runs low-priority callbacks a little later, several of them at a time.

The event loop sends a message's bytes only after the handler returns, so that everything else the handler does delays
the message. Each wake-up of a process takes as much time as several callbacks.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import nats.errors
import structlog

log = structlog.get_logger(__name__)

DEFER_S = 0.05  # delay of a deferred action

Action = Callable[[], Awaitable[None] | None]


class DeferredTasks:
    """A queue of deferred actions, run in order."""

    def __init__(self) -> None:
        self._actions: deque[Action] = deque()
        self._added = asyncio.Event()

    def defer(self, action: Action) -> None:
        """Call `action`, and await its result, in DEFER_S."""
        self._actions.append(action)
        self._added.set()

    async def run(self) -> None:
        """Run deferred actions until cancelled. Raises: an action's errors, except bus errors, which are logged."""
        while True:
            await self._added.wait()
            self._added.clear()
            await asyncio.sleep(DEFER_S)
            await self.run_now()

    async def run_now(self) -> None:
        """Run all deferred actions now."""
        while self._actions:
            try:
                if (awaitable := self._actions.popleft()()) is not None:
                    await awaitable
            except nats.errors.Error as error:
                log.warning("deferred action failed", error=repr(error))
