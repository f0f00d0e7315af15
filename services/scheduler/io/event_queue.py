"""The queue of events from all sources. A cycle takes all events that are queued when it starts."""

import asyncio
import time

from services.scheduler.events import Event


class EventQueue:
    """Many writers, one reader."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._taken_s = 0.0  # when events were last taken, by time.perf_counter

    def put(self, event: Event, *, wakes: bool = True) -> None:
        """Add an event. With `wakes=False` it does not end the reader's wait, and is read at the end of that."""
        self._events.append(event)
        if wakes:
            self._arrived.set()

    async def get_all(self, timeout_s: float, interval_s: float = 0.0) -> list[Event]:
        """Wait for an event that wakes, or for `timeout_s`; then remove all events and return them, perhaps none.

        Calls return at least `interval_s` seconds apart, so that more events share a cycle.
        """
        if not self._arrived.is_set():
            timer = asyncio.get_running_loop().call_later(timeout_s, self._arrived.set)  # cheaper than asyncio.timeout
            await self._arrived.wait()
            timer.cancel()
        if (early_s := self._taken_s + interval_s - time.perf_counter()) > 0:
            await asyncio.sleep(early_s)
        self._taken_s = time.perf_counter()
        events, self._events = self._events, []
        self._arrived.clear()
        return events
