"""Sets of an automaton's states, each with a number, and their images under tokens. Images are computed once each.

Requests of one pattern meet the same sets in most steps, so a step mostly looks numbers up.

Sets may have the counts at which their states can be. A state with a low count can continue in every way in which it
can with a higher one. So a set of the states after some tokens keeps the lowest count of each, and a set of those
before some tokens the highest count that still leads to a valid end. One count for each state is enough: the two sets
meet where the lowest is at most the highest.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from services.worker.patterns.token_automaton import FORBIDDEN, UNREACHABLE, TokenAutomaton, followers, room_before
from shared.arrays import Bool, Int32, Int64, UInt8

MAX_SETS = 20_000  # from which all are forgotten
MAX_MASKS = 1_000  # of allowed tokens, each a bit per token of the vocabulary
ANY = -1  # in place of a class: any token
ROWS_AT_ONCE = 1_024  # states in a chunk of `_edges`
NO_EDGE = (1 << 16) - 1  # of two states between which no token leads
NO_COUNT = UNREACHABLE // 2  # of a state that is not in a forward set; of one not in a backward set it is -1
NO_BOUND = UNREACHABLE  # of a state in no loop


class StateSets:
    """The sets of one automaton's states. Forward sets hold the states after the tokens so far, backward sets those
    from which the tokens that follow lead to a valid end."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        self.automaton = automaton
        follows = followers(automaton.next_state)
        self._successors = np.packbits(follows, axis=1)
        self._predecessors = np.packbits(follows.T, axis=1)
        # By pairs of sets, which each masked position of each step looks up, and by the classes allowed, as many pairs
        # allow the same
        self._masks: dict[tuple[int, int], UInt8] = {}
        self._mask_of: dict[bytes, UInt8] = {}
        self.forget()

    @cached_property
    def counted(self) -> "CountedSets | None":
        """The same with counts; None for an automaton without counters."""
        return CountedSets(self.automaton) if self.automaton.added is not None else None

    def forget(self) -> None:
        """Forget all sets; their numbers are void. Called before a step only."""
        self._members: list[Int64] = []
        self._number: dict[bytes, int] = {}
        self._after: dict[tuple[int, int], int] = {}  # by set and class
        self._before: dict[tuple[int, int], int] = {}
        self._classes: dict[tuple[int, int], Bool] = {}
        self._masks.clear()
        self._mask_of.clear()

    @property
    def is_full(self) -> bool:
        """Whether there are more sets than are worth their memory."""
        return len(self._members) > MAX_SETS

    def has_common(self, forward: int, backward: int) -> bool:
        """Whether a state is in both sets."""
        return bool(np.isin(self._members[forward], self._members[backward]).any())

    def of_states(self, states: Sequence[int], count: int = 0) -> int:  # noqa: ARG002  (as CountedSets has it)
        """The set of these states, ascending, with a count."""
        return self._add(np.array(states, dtype=np.int64))

    def valid_ends(self, tokens_left: int) -> int:
        """The states from which a text can end validly within this many tokens."""
        return self._add(np.flatnonzero(self.automaton.tokens_left <= tokens_left))

    def after(self, forward: int, token_class: int) -> int:
        """The states after a token of this class, or after ANY."""
        key = forward, token_class
        if key not in self._after:
            self._after[key] = self._add(self._states_after(self._members[forward], token_class))
        return self._after[key]

    def before(self, backward: int, token_class: int) -> int:
        """The states from which a token of this class, or ANY, leads into the set."""
        key = backward, token_class
        if key not in self._before:
            self._before[key] = self._add(self._states_before(self._members[backward], token_class))
        return self._before[key]

    def allows(self, forward: int, backward: int, token_class: int) -> bool:
        """Whether a token of this class leads from the one set into the other."""
        return bool(self._allowed(forward, backward)[token_class])

    def mask(self, forward: int, backward: int) -> UInt8:
        """The tokens that lead from the one set into the other, as bits: [ceil(V / 8)]."""
        key = forward, backward
        if key not in self._masks:
            if len(self._masks) >= MAX_MASKS:
                self._masks.clear()
                self._mask_of.clear()
            allowed = self._allowed(forward, backward)
            equal = allowed.tobytes()  # many pairs allow the same tokens
            if equal not in self._mask_of:
                self._mask_of[equal] = np.packbits(allowed[self.automaton.class_of])
            self._masks[key] = self._mask_of[equal]
        return self._masks[key]

    def _allowed(self, forward: int, backward: int) -> Bool:
        """By class. Shape: [C]."""
        key = forward, backward
        if key not in self._classes:
            allowed = self._classes_between(self._members[forward], self._members[backward])
            allowed[FORBIDDEN] = False
            self._classes[key] = allowed
        return self._classes[key]

    def _states_after(self, members: Int64, token_class: int) -> Int64:
        if token_class == ANY:
            return self._union(self._successors[members])
        states = np.unique(self.automaton.next_state[members, token_class])
        return states[states <= self.automaton.ended].astype(np.int64)

    def _states_before(self, members: Int64, token_class: int) -> Int64:
        if token_class == ANY:
            return self._union(self._predecessors[members])
        return np.flatnonzero(self._contains(members)[self.automaton.next_state[:, token_class]])

    def _classes_between(self, before: Int64, after: Int64) -> Bool:
        """Whether a token of each class leads from the one set into the other: [C]."""
        return np.asarray(self._contains(after)[self.automaton.next_state[before]].any(axis=0))

    def _contains(self, members: Int64) -> Bool:
        """By state, and False for no state: [S + 1]."""
        found = np.zeros(len(self.automaton.next_state) + 1, dtype=np.bool_)
        found[members] = True
        return found

    def _union(self, rows: UInt8) -> Int64:
        bits = np.bitwise_or.reduce(rows, axis=0)
        return np.flatnonzero(np.unpackbits(bits, count=len(self.automaton.next_state)))

    def _add(self, members: Int64) -> int:
        key = members.tobytes()
        if key not in self._number:
            self._number[key] = len(self._members)
            self._members.append(members)
        return self._number[key]


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
