"""How much one key may ask for: pure, with time passed in."""

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenBucket:
    """A minute's requests at once, then one each time a new one has come due."""

    per_minute: int
    _left: float = field(init=False)
    _at_s: float = -math.inf

    def __post_init__(self) -> None:
        self._left = float(self.per_minute)

    def take(self, now_s: float) -> float:
        """Take one. Returns: 0.0, or, where none is left, the seconds until there is one."""
        passed_s = max(0.0, now_s - self._at_s)
        self._left = min(float(self.per_minute), self._left + passed_s * self.per_minute / 60)
        self._at_s = now_s
        if self._left < 1:
            return (1 - self._left) * 60 / self.per_minute
        self._left -= 1
        return 0.0


class RateLimits:
    """One bucket a key."""

    def __init__(self) -> None:
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, key_id: str, per_minute: int, now_s: float) -> float:
        """As TokenBucket.take; a changed limit begins anew."""
        bucket = self._buckets.get(key_id)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[key_id] = TokenBucket(per_minute)
        return bucket.take(now_s)
