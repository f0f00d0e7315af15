"""Virtual time: runs actions in the order of their times, and of their scheduling at equal times."""

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class VirtualClock:
    """Time stands still between actions."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()

    def __bool__(self) -> bool:
        """Whether an action is left."""
        return bool(self._heap)

    def at(self, time_s: float, action: Action) -> None:
        """Run `action` at that time, or now if that is past."""
        heapq.heappush(self._heap, (max(time_s, self.now_s), next(self._numbers), action))

    def advance(self, window_s: float) -> None:
        """Run the next action and those that follow within the window; the time is then that of the last."""
        end_s = self._heap[0][0] + window_s
        while self._heap and self._heap[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
