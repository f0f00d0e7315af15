"""The queue of events from all sources. A cycle takes all events that are queued when it starts."""

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

    async def get_all(self, timeout_s: float) -> list[Event]:
        """Wait for an event, and remove all. Returns: an empty list after `timeout_s` seconds without an event."""
        if not self._events:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        events, self._events = self._events, []
        self._arrived.clear()
        return events
