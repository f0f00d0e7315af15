"""Sets of states with the counts at which they can be.

A state with a low count can continue in every way in which it can with a higher one. So a set of the states after some
tokens keeps the lowest count of each, and a set of those before some tokens the highest count that still leads to a
valid end. One count for each state is enough: the two sets meet where the lowest is at most the highest.
"""

from collections.abc import Sequence

import numpy as np

from services.worker.patterns.state_sets import ANY, StateSets
from services.worker.patterns.token_automaton import UNREACHABLE, TokenAutomaton, room_before
from shared.arrays import Bool, Int32, Int64

ROWS_AT_ONCE = 1_024  # states in a chunk of `_edges`
NO_EDGE = (1 << 16) - 1  # of two states between which no token leads
NO_COUNT = UNREACHABLE // 2  # of a state that is not in a forward set; of one not in a backward set it is -1
NO_BOUND = UNREACHABLE  # of a state in no loop


class CountedSets(StateSets):
    """As StateSets, for an automaton with counters. The members of a set are a count for each state, [S + 1]."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        super().__init__(automaton)
        assert automaton.added is not None
        self._added: Int32 = automaton.added
        self._bound = np.append(automaton.bound, np.int32(NO_BOUND))
        self._edges = _edges(automaton)
        self.most_added = self._added.max(axis=0)  # [C]
        in_loops = (automaton.bound < NO_BOUND) & (automaton.room >= 0)
        reserve = (automaton.bound - automaton.room)[in_loops].max(initial=0)
        _, target, added, _ = self._edges
        enters = self._bound[target] < NO_BOUND
        # While the count, the known tokens of a block and its masks (`per_mask` each) total at most `safe_total`, no
        # bound is reached, and plain sets suffice. It leaves room for one more token, for one that leaves the loop, and
        # for the shortest way to an end (`reserve`).
        self.per_mask = int(added[enters].max(initial=1))
        leaves = int(added[~enters].max(initial=0))
        self.safe_total = int(automaton.bound.min()) - int(reserve) - int(self.most_added.max()) - leaves
        self._rows = np.arange(len(automaton.next_state))

    def of_states(self, states: Sequence[int], count: int = 0) -> int:
        found = np.full(len(self._bound), NO_COUNT, dtype=np.int64)
        found[states] = count
        return self._add(found)

    def has_common(self, forward: int, backward: int) -> bool:
        return bool((self._members[forward] <= self._members[backward])[:-1].any())

    def valid_ends(self, tokens_left: int) -> int:
        room = np.where(self.automaton.tokens_left <= tokens_left, self.automaton.room, -1)
        return self._add(np.append(room, -1).astype(np.int64))

    def _states_after(self, members: Int64, token_class: int) -> Int64:
        source, target, added, stays = self._transitions(token_class)
        edges = np.flatnonzero(members[source] < NO_COUNT)  # few of all
        source, target, added = source[edges], target[edges], added[edges]
        counts, limit = members[source], self._bound[target]
        after = np.where(stays[edges], counts, 0) + added
        is_open = (counts + added <= self._bound[source]) & (after <= limit)
        after[limit == NO_BOUND] = 0  # no count outside loops
        found = np.full(len(self._bound), NO_COUNT, dtype=np.int64)
        np.minimum.at(found, target[is_open], after[is_open])
        found[-1] = NO_COUNT  # the last one is no state: no text continues so
        return found

    def _states_before(self, members: Int64, token_class: int) -> Int64:
        source, target, added, stays = self._transitions(token_class)
        edges = np.flatnonzero(members[target] >= 0)
        source, target = source[edges], target[edges]
        room = room_before(members[target], self._bound[source], self._bound[target], added[edges], stays[edges])
        found = np.full(len(self._bound), -1, dtype=np.int64)
        np.maximum.at(found, source, room)
        return found

    def _transitions(self, token_class: int) -> tuple[Int64, Int64 | Int32, Int32, Bool]:
        """By tokens of a class, or by ANY: as `_edges`."""
        if token_class == ANY:
            return self._edges
        table = self.automaton
        return self._rows, table.next_state[:, token_class], self._added[:, token_class], table.stays[:, token_class]

    def _classes_between(self, before: Int64, after: Int64) -> Bool:
        table = self.automaton
        states = np.flatnonzero(before[:-1] < NO_COUNT)
        counts, added = before[states][:, None], self._added[states]
        count = np.where(table.stays[states], counts, 0) + added
        is_open = (counts + added <= self._bound[states][:, None]) & (count <= after[table.next_state[states]])
        return np.asarray(is_open.any(axis=0))


def counted_sets_of(sets: StateSets) -> CountedSets | None:
    """Made once; None for an automaton without counters."""
    if sets.counted is None and sets.automaton.added is not None:
        sets.counted = CountedSets(sets.automaton)
    return sets.counted if isinstance(sets.counted, CountedSets) else None


def _edges(automaton: TokenAutomaton) -> tuple[Int64, Int64, Int32, Bool]:
    """The pairs of states between which a token leads, whether it stays in the loop, and what it adds at least: source,
    target, added, stays."""
    assert automaton.added is not None
    states = len(automaton.next_state)
    found: list[tuple[Int64, Int64, Int32, Bool]] = []
    for start in range(0, states, ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        to, added, stays = automaton.next_state[rows], automaton.added[rows], automaton.stays[rows].astype(np.int64)
        row = np.arange(len(to))
        least = np.full((2, len(to), states + 1), NO_EDGE, dtype=np.uint16)
        for column in range(to.shape[1]):
            at = stays[:, column], row, to[:, column]
            least[at] = np.minimum(least[at], added[:, column])
        kept, source, target = np.nonzero(least[:, :, :-1] < NO_EDGE)
        found.append((source + start, target, least[kept, source, target].astype(np.int32), kept.astype(np.bool_)))
    parts = list(zip(*found, strict=True))
    return np.concatenate(parts[0]), np.concatenate(parts[1]), np.concatenate(parts[2]), np.concatenate(parts[3])
