"""Reserves regions of the KV cache for requests, and evicts requests from it.

A request gets one region, with an entry for each token of its canvas, before its first step with a cache. It is evicted
when the scheduler drops it or sends a newer state of it, and when another scheduler takes over. No request is evicted
to make room for another: a request that finds too little room waits.

A part of the cache may hold the beginnings of texts (`prefix_pages`). A request that begins alike starts with them.
"""

from collections.abc import Iterable

from services.worker.cache.kv_allocator import KvAllocator, Move, Region
from services.worker.cache.prefix_pages import NO_PREFIXES, PrefixPages, PrefixSize
from services.worker.engine.cache_mode import CacheMode
from services.worker.engine.sequence_state import NO_REGION, SequenceState
from shared.arrays import unpack_int64
from shared.errors import BadInput
from shared.messages.steps import StepJobs
from shared.prefix_names import first_name, page_names


def tickets_to_evict(message: StepJobs, resident: Iterable[int]) -> list[int]:
    """The tickets that a message drops: those it names, and, if it has a `forget_below`, the `resident` tickets below
    that whose state it does not bring."""
    named: list[int] = unpack_int64(message.drops).tolist()
    if not message.forget_below:
        return named
    kept = {state.ticket for state in message.states}
    return named + [ticket for ticket in resident if ticket < message.forget_below and ticket not in kept]


class KvReservations:
    """Reserves and frees the cache's entries."""

    def __init__(self, mode: CacheMode, num_tokens: int, prefixes: PrefixSize = NO_PREFIXES) -> None:
        """`num_tokens`: all entries of the cache; the last ones are for `prefixes`."""
        self.allocator = KvAllocator(num_tokens - prefixes.tokens)
        self.prefixes = PrefixPages(prefixes, self.allocator.size)
        self._is_used = mode is not CacheMode.NONE
        self._has_waiting = False  # whether a request found too little room since the last eviction
        self._holders: dict[int, SequenceState] = {}  # by the first entry of their regions
        self._moves: list[Move] = []

    def check(self, sequence: SequenceState) -> None:
        """Raises: BadInput if the empty cache has no room for the request."""
        if self._is_used and len(sequence.canvas) > self.allocator.size:
            raise BadInput(f"{len(sequence.canvas)} tokens; this instance's cache holds {self.allocator.size}")

    def reserve(self, sequence: SequenceState, block: int) -> bool:
        """Give the request its entries, if it needs any, and to those before its current block what is stored of its
        text's beginning. Returns: whether it has them; False: it waits for room, and no later request overtakes it."""
        if not self._is_used or sequence.kv_start != NO_REGION:
            return True
        length = len(sequence.canvas)
        self._has_waiting = self._has_waiting or length > self.allocator.num_free
        if self._has_waiting:
            return False
        start = self.allocator.allocate(length)
        if start is None:
            self._compact()
            start = self.allocator.allocate(length)
        assert start is not None, "the free entries are side by side"
        sequence.kv_start = start
        self._holders[start] = sequence
        if sequence.is_exact:
            loads = self.prefixes.load(self._names(sequence, sequence.block_range(block)[0]), start)
            loaded = sum(load.length for load in loads)
            sequence.exact_tokens = sequence.loaded_tokens = sequence.stored_tokens = loaded
            self._moves += loads
        return True

    def store(self, sequences: Iterable[SequenceState]) -> None:
        """Store the new pages among the first tokens of these requests, whose keys and values are exact."""
        page_tokens = self.prefixes.page_tokens
        if not page_tokens:
            return
        for sequence in sequences:
            if sequence.exact_tokens - sequence.stored_tokens >= page_tokens:
                names = self._names(sequence, sequence.exact_tokens)
                sequence.stored_tokens = len(names) * page_tokens
                self._moves += self.prefixes.save(names, sequence.kv_start)

    def evict(self, sequence: SequenceState) -> None:
        """Free the request's entries, if it has any."""
        self._has_waiting = False
        if sequence.kv_start != NO_REGION:
            del self._holders[sequence.kv_start]
            self.allocator.free(sequence.kv_start, len(sequence.canvas))
            sequence.kv_start = NO_REGION

    def take_moves(self) -> list[Move]:
        """The copies within the cache that the next forward must make first, in this order."""
        moves, self._moves = self._moves, []
        return moves

    def _names(self, sequence: SequenceState, num_tokens: int) -> list[bytes]:
        """The names of the pages of the first tokens of a request; none if its blocks do not fit into pages."""
        names, page_tokens = sequence.page_names, self.prefixes.page_tokens
        if not page_tokens or page_tokens % sequence.block_length:
            return []
        further = sequence.canvas[len(names) * page_tokens : num_tokens]
        names += page_names(
            further, page_tokens, names[-1] if names else first_name(sequence.salt, sequence.block_length)
        )
        return names

    def _compact(self) -> None:
        """Move all regions together."""
        used = [Region(start, len(sequence.canvas)) for start, sequence in self._holders.items()]
        for move in self.allocator.compact(used):
            sequence = self._holders.pop(move.source)
            sequence.kv_start = move.target
            self._holders[move.target] = sequence
            self._moves.append(move)
