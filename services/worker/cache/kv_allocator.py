"""Allocates entries of the KV cache. One entry holds the keys and values of one token in every layer.

Any free entry serves any token, so the cache never fragments.
"""

import numpy as np

from shared.arrays import Int64


class KvAllocator:
    """Hands out entries and takes them back."""

    def __init__(self, size: int) -> None:
        self.size = size  # entries in all
        self.num_free = size
        self._free: Int64 = np.arange(size, dtype=np.int64)

    def allocate(self, count: int) -> Int64 | None:
        """Returns: `count` entries, or None if fewer are free."""
        if count > self.num_free:
            return None
        self.num_free -= count
        return self._free[self.num_free : self.num_free + count].copy()

    def free(self, entries: Int64) -> None:
        """Take back entries that `allocate` returned."""
        assert self.num_free + len(entries) <= self.size, "entries freed twice"
        self._free[self.num_free : self.num_free + len(entries)] = entries
        self.num_free += len(entries)
