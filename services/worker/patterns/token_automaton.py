"""The automaton of a pattern over tokens. Tokens with the same transition from every state form one class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import commonprefix

import numpy as np

from shared.arrays import Bool, Int32, Int64
from shared.errors import BadInput
from shared.patterns.byte_automaton import NO_LOOP, PatternAutomaton

FORBIDDEN = 0  # the class of the tokens that occur in no matching text
MAX_ENTRIES = 1 << 26  # of a pattern's table by state and class: 256 MiB
TOO_LARGE = "the pattern is too large: the tokens of the model's vocabulary lead between its states in too many ways"
UNREACHABLE = np.iinfo(np.int32).max  # number of tokens, and no bound
MAX_COUNT = 1 << 29


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes of a vocabulary, sorted, so that tokens with a common beginning follow each other."""

    size: int  # the model's logits, at least as many as the tokenizer has tokens
    tokens: tuple[int, ...]  # ids, in the order of their bytes; those without bytes are left out
    texts: tuple[bytes, ...]
    shared: tuple[int, ...]  # bytes that each has in common with the one before it
    end_ids: tuple[int, ...]  # tokens that end a text

    @classmethod
    def of(cls, token_bytes: Sequence[bytes], end_ids: Sequence[int], size: int) -> "TokenTable":
        ends = set(end_ids)
        pairs = sorted((text, token) for token, text in enumerate(token_bytes) if text and token not in ends)
        texts = tuple(text for text, _ in pairs)
        shared = (len(commonprefix(neighbours)) for neighbours in pairwise((b"", *texts)))  # noqa: RUF071  (byte by byte)
        return cls(size, tuple(token for _, token in pairs), texts, tuple(shared), tuple(sorted(ends)))


@dataclass(frozen=True, slots=True)
class TokenAutomaton:
    """Shapes: S states, C classes, V logits. The last state is the one after an end token.

    Beside the states there is a counter. A token adds to it; it may exceed neither the bound of the state before the
    token nor that of the state after it, and begins again unless the token stays in its loop. The counts of a token
    that leaves and enters loops are never too low.
    """

    class_of: Int32  # [V]
    next_state: Int32  # [S, C]; the value S: no matching text continues with this class
    tokens_left: Int32  # [S], the fewest tokens from there to a final state
    added: Int32 | None  # [S, C], what a token adds to the counter; None: there are no counters
    stays: Bool  # [S, C], whether the token stays in the loop; without counters [0]
    bound: Int32  # [S], of the counter; UNREACHABLE: the state is in no loop
    room: Int32  # [S], the largest count at which `tokens_left` is enough

    @property
    def ended(self) -> int:
        """The state after an end token."""
        return len(self.next_state) - 1


def tokenize(pattern: PatternAutomaton, table: TokenTable) -> TokenAutomaton:
    """The automaton over the tokens of a vocabulary. An end token leads from an accepting state to the last state,
    which only end tokens leave. Raises: BadInput if it is too large."""
    columns = _Columns(pattern)
    column_of = np.zeros(table.size, dtype=np.int64)
    reached = [columns.start]  # after each byte of the current token
    for token, text, shared in zip(table.tokens, table.texts, table.shared, strict=True):
        del reached[shared + 1 :]
        for byte in text[len(reached) - 1 :]:
            reached.append(columns.after(reached[-1], byte))
        column_of[token] = reached[-1]
    kept = np.unique([FORBIDDEN, *column_of.tolist()])
    class_of = np.searchsorted(kept, column_of).astype(np.int32)
    class_of[list(table.end_ids)] = len(kept)
    next_state = np.stack([*(columns.states[column] for column in kept.tolist()), columns.end], axis=1)
    added, stays, bound = None, np.zeros(0, np.bool_), columns.bound[:-1]
    if pattern.bounds:
        effects = np.stack([*(columns.effects[column] for column in kept.tolist()), 0 * columns.end], axis=1)
        added, stays = effects >> 1, (effects & 1).astype(np.bool_)
    found = TokenAutomaton(class_of, next_state, bound, added, stays, bound, bound)
    is_final = np.append(pattern.accepting, True).astype(np.int32)
    left, room = _ways_to_end(found, is_final)
    return replace(found, tokens_left=left, room=room)


class _Columns:
    """The transitions of byte strings. A column has, for each state, the state after the string, and its effect on the
    counter. Equal columns are stored once. Column FORBIDDEN leads from every state to the dead state."""

    def __init__(self, pattern: PatternAutomaton) -> None:
        states = len(pattern.next_state)
        ended, dead = states, states + 1
        self._steps = np.full((256, states + 2), dead, dtype=np.int32)  # by byte
        self._steps[:, :states] = np.where(pattern.next_state < 0, dead, pattern.next_state).T
        self._max = MAX_ENTRIES // (states + 1)
        self._number: dict[bytes, int] = {}
        self._after: dict[tuple[int, int], int] = {}  # by column and byte
        self._loop = np.append(pattern.loop, [NO_LOOP, NO_LOOP]).astype(np.int32)
        self._counts = np.append(pattern.counts, [False, False]).astype(np.int32)
        self.bound = np.append(np.array(pattern.bounds, np.int64).clip(0, MAX_COUNT), UNREACHABLE)[self._loop]
        self.bound = self.bound.astype(np.int32)
        self._has_counters = bool(pattern.bounds)
        self.states: list[Int32] = []  # [S] each
        self.effects: list[Int32] = []  # [S] each: twice what is added, and 1 if the string stays in the loop
        self.end = np.full(states + 1, dead, dtype=np.int32)
        self.end[:states][pattern.accepting] = ended
        self.end[ended] = ended
        none = np.zeros(states + 1, dtype=np.int32)
        self._add(np.full(states + 1, dead, dtype=np.int32), none)
        in_loop = (self._loop[:-1] >= 0).astype(np.int32)
        self.start = self._add(np.append(np.arange(states, dtype=np.int32), np.int32(dead)), in_loop)

    def after(self, column: int, byte: int) -> int:
        """The column of a text that is one byte longer."""
        found = self._after.get((column, byte))
        if found is None:
            states, effects = self._steps[byte].take(self.states[column]), self.effects[column]
            if self._has_counters:
                own, loop = self._loop[:-1], self._loop[states]
                added = (effects >> 1) + self._counts[states]
                states = np.where(added > np.minimum(self.bound[states], self.bound[:-1]), self._steps[0, -1], states)
                added[((own < 0) & (loop < 0)) | (states == self._steps[0, -1])] = 0
                effects = 2 * added + ((effects & 1) & (loop == own))
            found = self._after[column, byte] = self._add(states, effects)
        return found

    def _add(self, states: Int32, effects: Int32) -> int:
        key = states.tobytes() + effects.tobytes() if self._has_counters else states.tobytes()
        found = self._number.setdefault(key, len(self.states))
        if found == len(self.states):
            if found == self._max:
                raise BadInput(TOO_LARGE, "pattern")
            self.states.append(np.frombuffer(key, np.int32, len(states)))
            self.effects.append(effects.astype(np.int32))
        return found


def followers(next_state: Int32) -> Bool:
    """Whether a token leads from the first to the second state. Shapes: [S, C] -> [S, S]."""
    found = np.zeros((len(next_state), len(next_state) + 1), dtype=np.bool_)
    for state, targets in enumerate(next_state):
        found[state, targets] = True
    return found[:, :-1]


def room_before(room: Int32 | Int64, bound: Int32, bound_after: Int32, added: Int32, stays: Bool) -> Int32:
    """The largest count before a token from whose count after it `room` is left; negative: none. `bound`,
    `bound_after`: of the states before and after the token. All have one shape."""
    after = np.where(bound_after == UNREACHABLE, np.where(room < 0, room, UNREACHABLE), room)
    kept = np.minimum(after, bound) - added
    begun = np.where(bound == UNREACHABLE, bound, bound - added)
    return np.where(after < 0, -1, np.where(stays, kept, np.where(added <= after, begun, -1)))


def _ways_to_end(automaton: TokenAutomaton, is_final: Int32) -> tuple[Int32, Int32]:
    """Shortest paths to a final state, by tokens, and the largest counts at which each is open. [S] each."""
    next_state, bound = automaton.next_state, np.append(automaton.bound, np.int32(UNREACHABLE))
    leads_to = np.ascontiguousarray(followers(next_state).T)
    left = np.full(len(next_state), UNREACHABLE, dtype=np.int32)
    room = np.full(len(next_state) + 1, -1, dtype=np.int32)
    found, length = np.flatnonzero(is_final), 0
    room[found] = bound[found]
    while len(found):
        left[found] = length
        before = np.flatnonzero(leads_to[found].any(axis=0) & (left == UNREACHABLE))
        if automaton.added is not None:
            layer = np.full(len(room), -1, dtype=np.int32)
            layer[found] = room[found]
            targets = next_state[before]
            ways = room_before(
                layer[targets], bound[before][:, None], bound[targets], automaton.added[before], automaton.stays[before]
            )
            rooms = ways.max(axis=1, initial=-1)
            before, rooms = before[rooms >= 0], rooms[rooms >= 0]
            room[before] = rooms
        found, length = before, length + 1
    return left, room[:-1]
