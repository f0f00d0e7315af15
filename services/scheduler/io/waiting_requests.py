"""The requests beyond those that the scheduler holds. Pure.

An entry has no prompt, as the scheduler reads its message again. So memory bounds their number no earlier than the
stream does.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from services.scheduler.io.delivery import Delivery
from shared.messages.requests import Arrival


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A received request without its prompt."""

    delivery: Delivery
    arrival: Arrival
    priority: int
    key: str = ""  # of the request

    @property
    def request_id(self) -> str:
        return self.arrival.request_id


class WaitingRequests:
    """A queue in the order of service: higher priority first, then earlier arrival."""

    def __init__(self) -> None:
        self._waiting: dict[str, ReceivedRequest] = {}  # by request id
        self._heap: list[tuple[int, float, int, str]] = []  # priority, arrival, sequence, id; may hold removed ones

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[ReceivedRequest]:
        """In the order in which they were added."""
        return iter(self._waiting.values())

    def get(self, request_id: str) -> ReceivedRequest | None:
        return self._waiting.get(request_id)

    def add(self, waiting: ReceivedRequest) -> None:
        """Add a request whose id is not in the queue."""
        self._waiting[waiting.request_id] = waiting
        heapq.heappush(self._heap, _place(waiting))

    def first(self) -> ReceivedRequest | None:
        """The first in the order of service. Returns: None if the queue is empty."""
        while self._heap:
            *_, sequence, request_id = self._heap[0]
            waiting = self._waiting.get(request_id)
            if waiting is not None and waiting.delivery.sequence == sequence:
                return waiting
            heapq.heappop(self._heap)
        return None

    def pop(self) -> ReceivedRequest:
        """Remove the first. Raises: IndexError if the queue is empty."""
        if (waiting := self.first()) is None:
            raise IndexError("the queue is empty")
        heapq.heappop(self._heap)
        return self._waiting.pop(waiting.request_id)

    def remove(self, request_id: str) -> ReceivedRequest | None:
        """Remove a request. Returns: None if it is not in the queue."""
        removed = self._waiting.pop(request_id, None)
        if len(self._heap) > 2 * len(self._waiting) + 1000:
            self._heap = [_place(waiting) for waiting in self._waiting.values()]
            heapq.heapify(self._heap)
        return removed


def _place(waiting: ReceivedRequest) -> tuple[int, float, int, str]:
    return -waiting.priority, waiting.arrival.arrival_s, waiting.delivery.sequence, waiting.request_id
