"""Requests per minute of each key. Pure: the time is an argument."""

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenBucket:
    """Allows bursts of `per_minute` requests and refills at that rate."""

    per_minute: int
    _tokens: float = field(init=False)
    _updated_s: float = -math.inf

    def __post_init__(self) -> None:
        self._tokens = float(self.per_minute)

    def acquire(self, now_s: float) -> float:
        """Take a token. Returns: 0.0, or the seconds until there is one."""
        elapsed_s = max(0.0, now_s - self._updated_s)
        self._tokens = min(float(self.per_minute), self._tokens + elapsed_s * self.per_minute / 60)
        self._updated_s = now_s
        if self._tokens < 1:
            return (1 - self._tokens) * 60 / self.per_minute
        self._tokens -= 1
        return 0.0


class RateLimits:
    """One bucket per key."""

    def __init__(self) -> None:
        self._buckets: dict[str, TokenBucket] = {}

    def acquire(self, key_id: str, per_minute: int, now_s: float) -> float:
        """As TokenBucket.acquire; a changed limit starts with a full bucket."""
        bucket = self._buckets.get(key_id)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[key_id] = TokenBucket(per_minute)
        return bucket.acquire(now_s)
