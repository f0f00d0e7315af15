"""The beginnings of texts that instances have cached, as far as the scheduler knows: those of requests that ran there.

An instance evicts pages in the order of their last use, so the index forgets them in the same order. It may be wrong:
placement only prefers an instance by it.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from shared.arrays import Int32, Int64
from shared.prefix_names import first_name, page_names


class PrefixIndex:
    """The names of the pages that each instance holds, by the index of the instance."""

    def __init__(self) -> None:
        self._pages: dict[int, OrderedDict[bytes, None]] = {}  # the least recently used first
        self._capacity: dict[int, int] = {}  # in pages
        self.page_tokens = 0  # of all pages; an instance with others is left out. 0: no instance has any

    def update(self, index: int, capacity_tokens: int, page_tokens: int) -> None:
        """An instance has a prefix cache of this size; none without pages."""
        if not page_tokens:
            self.forget(index)
            return
        if not self._capacity:
            self.page_tokens = page_tokens
        if page_tokens == self.page_tokens:
            self._capacity[index] = capacity_tokens // page_tokens
            self._pages.setdefault(index, OrderedDict())

    def forget(self, index: int) -> None:
        """The instance has ended, or has no prefix cache."""
        self._capacity.pop(index, None)
        self._pages.pop(index, None)
        if not self._capacity:
            self.page_tokens = 0

    def names(self, tokens: Int32, salt: str, block_length: int) -> list[bytes]:
        """The names of the whole pages of a text [T]; none if instances store no such pages."""
        if not self._capacity or self.page_tokens % block_length:
            return []
        return list(page_names(tokens, self.page_tokens, first_name(salt, block_length)))

    def store(self, index: int, names: Sequence[bytes]) -> None:
        """An instance has these pages of a text, from its beginning on."""
        pages = self._pages.get(index)
        if pages is None:
            return
        for name in reversed(names):  # so that no page is used later than the page before it
            pages[name] = None
            pages.move_to_end(name)
        while len(pages) > self._capacity[index]:
            pages.popitem(last=False)

    def cached_tokens(self, names: Sequence[bytes], size: int) -> Int64 | int:
        """The tokens of a text with these pages that each instance has: [size]; 0 if none has any."""
        if not names:
            return 0
        tokens = np.zeros(size, dtype=np.int64)
        for index, pages in self._pages.items():
            known = next((i for i, name in enumerate(names) if name not in pages), len(names))
            tokens[index] = known * self.page_tokens
        return tokens
