"""Keeps the keys and values of the beginnings of texts for later requests: pages of whole blocks, in their own part of
the cache. Only those of block-causal models are exact, so only these are kept.

A request copies the pages that it finds into its own region, so a page can be evicted at any time. The page that was
used least recently goes first; a page is never used later than the page before it. The scheduler imitates this order in
`services/scheduler/state/prefix_index.py`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from services.worker.cache.kv_allocator import Move

PAGE_TOKENS = 64  # of a page, rounded up to whole blocks


@dataclass(frozen=True, slots=True)
class PrefixSize:
    """The part of the cache for pages."""

    page_tokens: int = 0
    num_pages: int = 0

    @classmethod
    def of(cls, cache_tokens: int, share: float, page_tokens: int, block_length: int, max_length: int) -> "PrefixSize":
        """At most this share of the cache of a block-causal model, in pages of at least `page_tokens`, rounded up to
        whole blocks. The rest has room for the longest request."""
        page_tokens = -(-page_tokens // block_length) * block_length
        num_pages = min(int(cache_tokens * share), cache_tokens - max_length) // page_tokens
        return cls(page_tokens, num_pages) if num_pages > 0 else cls()

    @property
    def tokens(self) -> int:
        return self.page_tokens * self.num_pages


NO_PREFIXES = PrefixSize()


class PrefixPages:
    """Which pages are stored, and where. A page is known by its name (`shared.prefix_names`)."""

    def __init__(self, size: PrefixSize, first_entry: int) -> None:
        """The pages occupy the cache's entries from `first_entry` on."""
        self.page_tokens = size.page_tokens
        self._entry_of: OrderedDict[bytes, int] = OrderedDict()  # by name, the least recently used first
        self._free = [first_entry + i * size.page_tokens for i in reversed(range(size.num_pages))]
        self._num_pages = size.num_pages
        self.wanted_tokens = 0  # of all pages looked for so far
        self.loaded_tokens = 0  # of those that were found

    @property
    def used_tokens(self) -> int:
        """The tokens of the pages that are stored now."""
        return len(self._entry_of) * self.page_tokens

    def load(self, names: Sequence[bytes], target: int) -> list[Move]:
        """The copies of the stored pages at the beginning of a text to the entries from `target` on."""
        length = self.page_tokens
        found = [self._entry_of[name] for name in takewhile(self._entry_of.__contains__, names)]
        self._use(names[: len(found)])
        self.wanted_tokens += len(names) * length
        self.loaded_tokens += len(found) * length
        return _joined([Move(entry, target + i * length, length) for i, entry in enumerate(found)])

    def save(self, names: Sequence[bytes], source: int) -> list[Move]:
        """Store the pages of a text that are not stored yet, at most as many as there is room for. Returns: the copies
        from the text's entries, from `source` on."""
        names = names[: self._num_pages]
        self._use([name for name in names if name in self._entry_of])  # so that none of them is evicted below
        copies, length = [], self.page_tokens
        for i, name in enumerate(names):
            if name not in self._entry_of:
                self._entry_of[name] = self._free.pop() if self._free else self._entry_of.popitem(last=False)[1]
                copies.append(Move(source + i * length, self._entry_of[name], length))
        self._use(names)
        return _joined(copies)

    def _use(self, names: Sequence[bytes]) -> None:
        for name in reversed(names):
            self._entry_of.move_to_end(name)


def _joined(copies: Sequence[Move]) -> list[Move]:
    """Fewer copies with the same effect."""
    joined: list[Move] = []
    for copy in copies:
        last = joined[-1] if joined else None
        if last and (last.source + last.length, last.target + last.length) == (copy.source, copy.target):
            joined[-1] = last._replace(length=last.length + copy.length)
        else:
            joined.append(copy)
    return joined
