"""Room for cached keys and values, counted in tokens: one entry holds those of one token in every layer.

Any free entry serves any token, so the pool never fragments: what is free can be used.
"""

import numpy as np

from shared.arrays import Int64


class KvAllocator:
    """Hands out entries and takes them back."""

    def __init__(self, size: int) -> None:
        self.size = size  # entries in all
        self._free: Int64 = np.arange(size, dtype=np.int64)
        self.free = size

    def take(self, count: int) -> Int64 | None:
        """`count` entries for the caller alone; None if so many are not free."""
        if count > self.free:
            return None
        self.free -= count
        return self._free[self.free : self.free + count].copy()

    def give(self, entries: Int64) -> None:
        """Take back what `take` handed out."""
        assert self.free + len(entries) <= self.size, "entries given back twice"
        self._free[self.free : self.free + len(entries)] = entries
        self.free += len(entries)
