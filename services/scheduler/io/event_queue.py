"""Events from every source in one place, taken all at once: what comes while a cycle runs makes the next one."""

import asyncio

from services.scheduler.events import Event


class EventQueue:
    """Many writers, one reader."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._arrived.set()

    async def take(self, within_s: float) -> list[Event]:
        """All events, waiting for the first; an empty list when none came within `within_s` seconds."""
        if not self._events:
            try:
                async with asyncio.timeout(within_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        events, self._events = self._events, []
        self._arrived.clear()
        return events
