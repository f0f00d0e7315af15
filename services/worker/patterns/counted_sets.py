"""Sets of states with the counts at which they can be.

A low count leaves more ways to continue than a high one. So a set of the states after some tokens keeps the lowest
count of each, and a set of those before some tokens the highest count from which they lead to a valid end. Both are
exact.
"""

from collections.abc import Sequence

import numpy as np

from services.worker.patterns.state_sets import StateSets
from services.worker.patterns.token_automaton import FORBIDDEN, UNREACHABLE, TokenAutomaton, room_before
from shared.arrays import Bool, Int32, Int64

MAX_ROWS = 1_024  # of states whose ways are collected at once
NONE = (1 << 16) - 1
NO_COUNT = UNREACHABLE // 2  # of a state that is not in a set of states after tokens; above each bound


class CountedSets(StateSets):
    """As StateSets, for an automaton with counters. The members of a set are a count for each state, [S + 1]."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        super().__init__(automaton)
        assert automaton.added is not None
        self._added: Int32 = automaton.added
        self._bound = np.append(automaton.bound, np.int32(UNREACHABLE))
        self._edges = _edges(automaton)
        self.most_added = self._added.max(axis=0)  # [C]
        in_loops = (automaton.bound < UNREACHABLE) & (automaton.room >= 0)
        reserve = (automaton.bound - automaton.room)[in_loops].max(initial=0)
        _, target, added, _ = self._edges
        enters = self._bound[target] < UNREACHABLE
        # As long as the tokens of a block add at most `free`, where each mask adds `per_mask`, no bound closes a way:
        # besides them one token may be added, and one may leave the loop
        self.per_mask = int(added[enters].max(initial=1))
        leaves = int(added[~enters].max(initial=0))
        self.free = int(automaton.bound.min()) - int(reserve) - int(self.most_added.max()) - leaves
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

    def after(self, forward: int, token_class: int) -> int:
        key = forward, token_class
        if key not in self._after:
            table = self.automaton
            ways = self._added[:, token_class], table.stays[:, token_class]
            self._after[key] = self._next(forward, self._rows, table.next_state[:, token_class], *ways)
        return self._after[key]

    def after_any(self, forward: int) -> int:
        if forward not in self._after_any:
            self._after_any[forward] = self._next(forward, *self._edges)
        return self._after_any[forward]

    def _next(self, forward: int, source: Int64, target: Int64 | Int32, added: Int32, stays: Bool) -> int:
        counts, found = self._members[forward][source], np.full(len(self._bound), NO_COUNT, dtype=np.int64)
        after = np.where(stays, counts, 0) + added
        limit = self._bound[target]
        is_open = np.flatnonzero(
            (counts < NO_COUNT) & (counts + added <= self._bound[source]) & (after <= limit)
        )  # few of all
        after = np.where(limit == UNREACHABLE, 0, after)
        np.minimum.at(found, target[is_open], after[is_open])
        found[-1] = NO_COUNT
        return self._add(found)

    def before(self, backward: int, token_class: int) -> int:
        key = backward, token_class
        if key not in self._before:
            table = self.automaton
            ways = self._added[:, token_class], table.stays[:, token_class]
            self._before[key] = self._previous(backward, self._rows, table.next_state[:, token_class], *ways)
        return self._before[key]

    def before_any(self, backward: int) -> int:
        if backward not in self._before_any:
            self._before_any[backward] = self._previous(backward, *self._edges)
        return self._before_any[backward]

    def _previous(self, backward: int, source: Int64, target: Int64 | Int32, added: Int32, stays: Bool) -> int:
        room, found = self._members[backward][target], np.full(len(self._bound), -1, dtype=np.int64)
        np.maximum.at(found, source, room_before(room, self._bound[source], self._bound[target], added, stays))
        found[-1] = -1
        return self._add(found.clip(-1))

    def _allowed(self, forward: int, backward: int) -> Bool:
        key = forward, backward
        if key not in self._classes:
            table, counts = self.automaton, self._members[forward][:-1]
            states = np.flatnonzero(counts < NO_COUNT)
            own, added = counts[states][:, None], self._added[states]
            after = np.where(table.stays[states], own, 0) + added
            room = self._members[backward][table.next_state[states]]
            allowed: Bool = np.asarray(((own + added <= self._bound[states][:, None]) & (after <= room)).any(axis=0))
            allowed[FORBIDDEN] = False
            self._classes[key] = allowed
        return self._classes[key]


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
    for start in range(0, states, MAX_ROWS):
        rows = slice(start, start + MAX_ROWS)
        to, added, stays = automaton.next_state[rows], automaton.added[rows], automaton.stays[rows].astype(np.int64)
        own = np.arange(len(to))
        least = np.full((2, len(to), states + 1), NONE, dtype=np.uint16)
        for column in range(to.shape[1]):
            at = stays[:, column], own, to[:, column]
            least[at] = np.minimum(least[at], added[:, column])
        kept, source, target = np.nonzero(least[:, :, :-1] < NONE)
        found.append((source + start, target, least[kept, source, target].astype(np.int32), kept.astype(np.bool_)))
    parts = list(zip(*found, strict=True))
    return np.concatenate(parts[0]), np.concatenate(parts[1]), np.concatenate(parts[2]), np.concatenate(parts[3])
