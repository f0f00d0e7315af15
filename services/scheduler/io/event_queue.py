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
        """An event that `wakes` the reader ends its wait; another one is read with the next event."""
        self._events.append(event)
        if wakes:
            self._arrived.set()

    async def get_all(self, timeout_s: float, interval_s: float = 0.0) -> list[Event]:
        """Wait for an event, and until `interval_s` seconds after the last call returned; remove all. Returns: an empty
        list after `timeout_s` seconds without an event."""
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
