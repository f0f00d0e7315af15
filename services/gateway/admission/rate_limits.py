"""Requests per minute of each key. Pure: the time is an argument."""

import math
from collections.abc import Mapping


class RateLimits:
    """Allows a key a burst of one minute's requests, then one per interval (the generic cell rate algorithm)."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[str, int], float] = {}  # by key and limit: the time at which all its requests are due

    def acquire(self, key_id: str, per_minute: int, now_s: float, requests: int = 1) -> float:
        """Count the requests if all are allowed. Returns: 0.0, or the seconds until they are allowed."""
        due_s = max(now_s, self._due_s.get((key_id, per_minute), -math.inf)) + requests * 60 / per_minute
        if due_s > now_s + 60:
            return due_s - now_s - 60
        self._due_s[key_id, per_minute] = due_s
        return 0.0

    def count(self, key_id: str, per_minute: int, requests: int, now_s: float) -> None:
        """Count requests that another gateway has allowed."""
        due_s = self._due_s.get((key_id, per_minute), -math.inf)
        self._due_s[key_id, per_minute] = max(now_s, due_s) + requests * 60 / per_minute

    def count_until(self, key_id: str, per_minute: int, due_s: float) -> None:
        """Count requests until all are due at this time, as another gateway has counted them."""
        self._due_s[key_id, per_minute] = max(due_s, self._due_s.get((key_id, per_minute), -math.inf))

    def due(self, now_s: float) -> Mapping[tuple[str, int], float]:
        """By key and limit, the time at which all its requests are due, if that is yet to come. Forgets the others."""
        self._due_s = {name: due_s for name, due_s in self._due_s.items() if due_s > now_s}
        return self._due_s
