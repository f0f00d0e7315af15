"""Sets of an automaton's states, each with a number, and their images under tokens. Images are computed once each.

Requests of one pattern meet the same sets in most steps, so a step mostly looks numbers up.
"""

from collections.abc import Sequence

import numpy as np

from services.worker.patterns.token_automaton import FORBIDDEN, TokenAutomaton, followers
from shared.arrays import Bool, Int64, UInt8

MAX_SETS = 20_000  # from which all are forgotten
MAX_MASKS = 1_000  # of allowed tokens, each a bit per token of the vocabulary
ANY = -1  # in place of a class: any token


class StateSets:
    """The sets of one automaton's states. Forward sets hold the states after the tokens so far, backward sets those
    from which the tokens that follow lead to a valid end."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        self.automaton = automaton
        self.counted: StateSets | None = None  # the same with counts, once they are made
        follows = followers(automaton.next_state)
        self._successors = np.packbits(follows, axis=1)
        self._predecessors = np.packbits(follows.T, axis=1)
        # By pairs of sets, which each masked position of each step looks up, and by the classes allowed, as many pairs
        # allow the same
        self._masks: dict[tuple[int, int], UInt8] = {}
        self._mask_of: dict[bytes, UInt8] = {}
        self.forget()

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
