"""The automaton of a pattern over tokens. Tokens with the same transition from every state form one class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.arrays import Bool, Int32
from shared.errors import BadInput
from shared.patterns.automaton import PatternAutomaton

FORBIDDEN = 0  # the class of the tokens that occur in no matching text
MAX_ENTRIES = 1 << 26  # of a pattern's table by state and class: 256 MiB
TOO_LARGE = "the pattern is too large: the tokens of the model's vocabulary lead between its states in too many ways"
UNREACHABLE = np.iinfo(np.int32).max  # number of tokens


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
        shared = (_common_bytes(a, b) for a, b in zip((b"", *texts), texts, strict=False))
        return cls(size, tuple(token for _, token in pairs), texts, tuple(shared), tuple(sorted(ends)))


def _common_bytes(one: bytes, other: bytes) -> int:
    """The bytes with which both begin."""
    different = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(different, min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class TokenAutomaton:
    """Shapes: S states, C classes, V logits. The last state is the one after an end token."""

    class_of: Int32  # [V]
    next_state: Int32  # [S, C]; the value S: no matching text continues with this class
    tokens_left: Int32  # [S], the fewest tokens from there to a final state

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
    is_final = np.append(pattern.accepting, True).astype(np.int32)
    return TokenAutomaton(class_of, next_state, _tokens_left(next_state, is_final))


class _Columns:
    """The transitions of byte strings. A column has, for each state, the state after the string. Equal columns are
    stored once. Column FORBIDDEN leads from every state to the dead state."""

    def __init__(self, pattern: PatternAutomaton) -> None:
        states = len(pattern.next_state)
        ended, dead = states, states + 1
        self._steps = np.full((256, states + 2), dead, dtype=np.int32)  # by byte
        self._steps[:, :states] = np.where(pattern.next_state < 0, dead, pattern.next_state).T
        self._max = MAX_ENTRIES // (states + 1)
        self._number: dict[bytes, int] = {}
        self._after: dict[tuple[int, int], int] = {}  # by column and byte
        self.states: list[Int32] = []  # [S] each
        self.end = np.full(states + 1, dead, dtype=np.int32)
        self.end[:states][pattern.accepting] = ended
        self.end[ended] = ended
        self._add(np.full(states + 1, dead, dtype=np.int32))
        self.start = self._add(np.append(np.arange(states, dtype=np.int32), np.int32(dead)))

    def after(self, column: int, byte: int) -> int:
        """The column of a text that is one byte longer."""
        found = self._after.get((column, byte))
        if found is None:
            found = self._after[column, byte] = self._add(self._steps[byte].take(self.states[column]))
        return found

    def _add(self, states: Int32) -> int:
        key = states.tobytes()
        found = self._number.setdefault(key, len(self.states))
        if found == len(self.states):
            if found == self._max:
                raise BadInput(TOO_LARGE, "pattern")
            self.states.append(np.frombuffer(key, dtype=np.int32))
        return found


def followers(next_state: Int32) -> Bool:
    """Whether a token leads from the first to the second state. Shapes: [S, C] -> [S, S]."""
    found = np.zeros((len(next_state), len(next_state) + 1), dtype=np.bool_)
    for state, targets in enumerate(next_state):
        found[state, targets] = True
    return found[:, :-1]


def _tokens_left(next_state: Int32, is_final: Int32) -> Int32:
    """Shortest paths to a final state, by tokens. Shapes: [S, C], [S] -> [S]."""
    leads_to = np.ascontiguousarray(followers(next_state).T)
    left = np.full(len(next_state), UNREACHABLE, dtype=np.int32)
    found, length = np.flatnonzero(is_final), 0
    while len(found):
        left[found] = length
        found = np.flatnonzero(leads_to[found].any(axis=0) & (left == UNREACHABLE))
        length += 1
    return left
