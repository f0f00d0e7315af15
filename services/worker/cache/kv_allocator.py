"""Allocates contiguous regions of the KV cache. One entry holds the keys and values of one token in every layer.

A kernel reads a request's keys where they lie, so a request has one region. If enough entries are free, but not side by
side, the regions move together.
"""

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple


class Region(NamedTuple):
    """Entries [start, start + length)."""

    start: int
    length: int


class Move(NamedTuple):
    """The entries from `source` on are copied to those from `target` on. If the two overlap, `target` < `source`."""

    source: int
    target: int
    length: int


class KvAllocator:
    """Hands out regions and takes them back."""

    def __init__(self, size: int) -> None:
        self.size = size  # entries in all
        self.num_free = size
        self._free = [Region(0, size)] if size else []  # by start; no two are adjacent

    def allocate(self, length: int) -> int | None:
        """The first entry of a region of this length, from the smallest free one that fits; None if none fits."""
        fitting = [region for region in self._free if region.length >= length]
        if not fitting:
            return None
        best = min(fitting, key=lambda region: region.length)
        self._free.remove(best)
        if best.length > length:
            insort(self._free, Region(best.start + length, best.length - length))
        self.num_free -= length
        return best.start

    def free(self, start: int, length: int) -> None:
        """Take back a region that `allocate` returned."""
        assert self.num_free + length <= self.size, "entries freed twice"
        self.num_free += length
        insort(self._free, Region(start, length))
        joined: list[Region] = []
        for region in self._free:
            if joined and joined[-1].start + joined[-1].length == region.start:
                joined[-1] = Region(joined[-1].start, joined[-1].length + region.length)
            else:
                joined.append(region)
        self._free = joined

    def compact(self, used: Iterable[Region]) -> list[Move]:
        """Move all regions in use to the front. Returns: the copies to make, in this order."""
        moves, end = [], 0
        for region in sorted(used):
            if region.start > end:
                moves.append(Move(region.start, end, region.length))
            end += region.length
        assert end == self.size - self.num_free, "all regions in use are needed"
        self._free = [Region(end, self.num_free)] if self.num_free else []
        return moves
