"""A pattern as an automaton over tokens: tokens that lead alike from every state are one class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.arrays import Int32
from shared.patterns.automaton import PatternAutomaton

NEVER = 0  # the class of tokens that no text of the pattern has
UNREACHABLE = np.iinfo(np.int32).max  # number of tokens


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes of a vocabulary, sorted, so that tokens with a common beginning follow each other."""

    size: int  # tokens of the vocabulary
    tokens: tuple[int, ...]  # ids, in the order of their bytes; those without bytes are left out
    texts: tuple[bytes, ...]
    shared: tuple[int, ...]  # bytes that each has in common with the one before it
    end_ids: tuple[int, ...]  # tokens that end a text

    @classmethod
    def of(cls, token_bytes: Sequence[bytes], end_ids: Sequence[int], size: int) -> "TokenTable":
        """`size`: the number of the model's logits, at least as many as there are tokens."""
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
    """Shapes: S states, the last of which is that after the end of the text, C classes, V tokens."""

    class_of: Int32  # [V]
    next_state: Int32  # [S, C]; S: no text continues so
    tokens_left: Int32  # [S], the fewest tokens from there to a final state

    @property
    def ended(self) -> int:
        """The state after an end token."""
        return len(self.next_state) - 1


def tokenize(pattern: PatternAutomaton, table: TokenTable) -> TokenAutomaton:
    """The automaton over the tokens of a vocabulary. An end token leads from an accepting state to the last state,
    which only end tokens leave."""
    states = len(pattern.next_state)
    ended, dead = states, states + 1
    steps = np.full((256, states + 2), dead, dtype=np.int32)  # by byte
    steps[:, :states] = np.where(pattern.next_state < 0, dead, pattern.next_state).T
    start = np.arange(states + 2, dtype=np.int32)
    start[ended] = dead
    no_way = np.full(states + 2, dead, dtype=np.int32).tobytes()
    number: dict[bytes, int] = {no_way: NEVER}
    class_of = np.full(table.size, NEVER, dtype=np.int32)
    reached = [start]  # after each byte of the current token
    for token, text, shared in zip(table.tokens, table.texts, table.shared, strict=True):
        del reached[shared + 1 :]
        for byte in text[len(reached) - 1 :]:
            reached.append(steps[byte].take(reached[-1]))
        class_of[token] = number.setdefault(reached[-1].tobytes(), len(number))
    columns = [np.frombuffer(column, dtype=np.int32)[: states + 1] for column in number]
    end = np.full(states + 1, dead, dtype=np.int32)
    end[:states][pattern.accepting] = ended
    end[ended] = ended
    class_of[list(table.end_ids)] = len(columns)
    next_state = np.stack([*columns, end], axis=1)
    next_state[next_state == dead] = states + 1
    is_final = np.append(pattern.accepting, True).astype(np.int32)
    return TokenAutomaton(class_of, next_state, _tokens_left(next_state, is_final))


def _tokens_left(next_state: Int32, is_final: Int32) -> Int32:
    """Shortest paths to a final state, by tokens. Shapes: [S, C], [S] -> [S]."""
    left = np.where(is_final, 0, UNREACHABLE).astype(np.int64)
    while True:
        padded = np.append(left, UNREACHABLE)
        shorter = np.minimum(left, padded[next_state].min(axis=1) + 1)
        if (shorter == left).all():
            return np.minimum(left, UNREACHABLE).astype(np.int32)
        left = shorter
