"""Automata over the bytes of a text, with counters beside their states.

A string of at most 10,000 characters would need 10,000 states. Instead its states form a loop: a counter counts the
characters since the text entered the loop, and may not exceed the loop's bound. A text is in one loop at a time.
"""

import base64
import zlib
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np

from shared.arrays import Bool, Int32, Int64
from shared.errors import BadInput
from shared.patterns.compile_budget import TooLarge, current_budget

BYTES = 256
MAX_STATES = 8_000
NO_LOOP = -1
WRITTEN = "*"  # begins an automaton that is written as a pattern, and no regular expression
MAX_ROUNDS = 100  # of the merging; an automaton that needs more, such as that of a{500}, has few equal states
MAX_MERGED = 1 << 26  # entries of its table that all rounds read: about a second


@dataclass(frozen=True, slots=True, eq=False)
class PatternAutomaton:
    """A pattern over bytes, from state 0. Each state is reached and leads to an accepting one. Shapes: S states."""

    next_state: Int32  # [S, 256], by state and byte; -1: no text continues so
    accepting: Bool  # [S]
    loop: Int32  # [S], of each state; NO_LOOP: none
    counts: Bool  # [S], whether the loop's counter counts each arrival in this state
    bounds: tuple[int, ...] = ()  # of each loop's counter

    @classmethod
    def plain(cls, next_state: Int32, accepting: Bool) -> "PatternAutomaton":
        """Without counters."""
        return cls(
            next_state, accepting, np.full(len(accepting), NO_LOOP, np.int32), np.zeros(len(accepting), np.bool_)
        )

    def accepts(self, text: str) -> bool:
        """Whether the whole text matches."""
        state, count = 0, 0
        for byte in text.encode(errors="surrogatepass"):
            loop, state = int(self.loop[state]), int(self.next_state[state, byte])
            if state < 0:
                return False
            count = int(self.counts[state]) + (count if loop == self.loop[state] else 0)
            if self.loop[state] >= 0 and count > self.bounds[self.loop[state]]:
                return False
        return bool(self.accepting[state])

    def written(self) -> str:
        """As a pattern, for other services."""
        own = np.arange(len(self.accepting), dtype=np.int32)[:, None]
        steps = np.where(self.next_state < 0, MAX_STATES, self.next_state - own)  # alike in like states
        head = np.array([len(own), len(self.bounds), *self.bounds], np.int64)
        parts = head, steps.astype(np.int16), self.loop.astype(np.int16), self.accepting, self.counts
        return WRITTEN + base64.b85encode(zlib.compress(b"".join(part.tobytes() for part in parts))).decode()


def read_automaton(text: str) -> PatternAutomaton:
    """The automaton that `written` wrote. Raises: BadInput if the text is invalid."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b85decode(text.removeprefix(WRITTEN)), MAX_STATES * (2 * BYTES + 16))
        states, loops = np.frombuffer(data, np.int64, 2).tolist()
        bounds = np.frombuffer(data, np.int64, loops, 16).tolist()
        at = 16 + 8 * loops
        steps = np.frombuffer(data, np.int16, BYTES * states, at).reshape(states, BYTES).astype(np.int32)
        at += 2 * BYTES * states
        loop = np.frombuffer(data, np.int16, states, at).astype(np.int32)
        accepting, counts = np.frombuffer(data, np.bool_, 2 * states, at + 2 * states).reshape(2, states)
    except (ValueError, zlib.error) as error:
        raise BadInput(f"the automaton is not valid: {error}", "pattern") from None
    next_state = np.where(steps == MAX_STATES, -1, steps + np.arange(states, dtype=np.int32)[:, None]).astype(np.int32)
    if not 0 < states <= MAX_STATES or not _within(next_state, states) or not _within(loop, loops):
        raise BadInput("the automaton is not valid: it leads to states that it does not have", "pattern")
    return PatternAutomaton(next_state, accepting, loop, counts, tuple(bounds))


def _within(values: Int32, end: int) -> bool:
    return bool((values >= -1).all() and (values < end).all())


def product(one: PatternAutomaton, other: PatternAutomaton, *, excluded: bool = False) -> PatternAutomaton | None:
    """The texts of both, or, if `excluded`, those of `one` alone; None if there are none. `other` has no counters.
    Raises: BadInput if it is too large."""
    others = np.vstack([other.next_state, np.full(BYTES, -1, np.int32)]).astype(np.int64)  # the last: no text left
    width = len(others)
    number = {0: 0}  # of each pair, as one number
    rows: list[Int64] = []
    budget, waiting = current_budget(), np.zeros(1, np.int64)
    while len(waiting):
        firsts = one.next_state[waiting // width].astype(np.int64)
        seconds = others[waiting % width]
        exists = (firsts >= 0) & ((seconds >= 0) | excluded)
        targets = np.where(exists, firsts * width + np.where(seconds < 0, width - 1, seconds), -1)
        rows.append(targets)
        waiting = np.array([pair for pair in np.unique(targets).tolist() if pair >= 0 and pair not in number], np.int64)
        number |= {pair: at for at, pair in enumerate(waiting.tolist(), len(number))}
        budget.spend(len(waiting))
        if len(number) > 4 * MAX_STATES:
            raise TooLarge(f"the pattern has more than {MAX_STATES} states", "pattern")
    pairs, known = np.array(list(number)), np.array(sorted(number))
    numbers = np.array([number[pair] for pair in known.tolist()])
    whole = np.concatenate(rows)
    next_state = np.where(whole >= 0, numbers[np.searchsorted(known, np.maximum(whole, 0))], -1).astype(np.int32)
    owners = pairs // width
    accepting = one.accepting[owners] & (np.append(other.accepting, False)[pairs % width] ^ excluded)
    return useful(PatternAutomaton(next_state, accepting, one.loop[owners], one.counts[owners], one.bounds))


def useful(whole: PatternAutomaton) -> PatternAutomaton | None:
    """Without the states that lead to no accepting one; None if none does."""
    before: list[list[int]] = [[] for _ in whole.accepting]
    for state, row in enumerate(whole.next_state):
        for target in set(row[row >= 0].tolist()):
            before[target].append(state)
    leads = whole.accepting.copy()
    waiting = np.flatnonzero(leads).tolist()
    for state in waiting:
        for each in before[state]:
            if not leads[each]:
                leads[each] = True
                waiting.append(each)
    if not leads[0]:
        return None
    kept = np.flatnonzero(leads)
    number = np.full(len(leads) + 1, -1, np.int32)  # the last: of -1
    number[kept] = np.arange(len(kept), dtype=np.int32)
    return PatternAutomaton(
        number[whole.next_state[kept]], whole.accepting[kept], whole.loop[kept], whole.counts[kept], whole.bounds
    )


def longest_text(automaton: PatternAutomaton) -> int | None:
    """The bytes of its longest text; None if there is none, as texts can repeat a part without end."""
    following = {state: set(row[row >= 0].tolist()) for state, row in enumerate(automaton.next_state)}
    longest: dict[int, int] = {}  # from each state
    try:
        for state in TopologicalSorter(following).static_order():  # after those that follow it
            longest[state] = max((longest[target] + 1 for target in following[state]), default=0)
    except CycleError:
        return None
    return longest[0]


def merged(whole: PatternAutomaton) -> PatternAutomaton:
    """Merge the states with the same continuations, by refinement of a partition (Moore 1956)."""
    columns = np.unique(whole.next_state, axis=1)  # bytes with equal transitions count once
    block, count = (4 * whole.loop + 2 * whole.counts + whole.accepting).astype(np.int32), 0
    for _ in range(min(MAX_ROUNDS, MAX_MERGED // max(1, columns.size))):
        rows = np.ascontiguousarray(np.column_stack([block, np.append(block, -9)[columns]]).astype(np.int32))
        keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        block = inverse.ravel().astype(np.int32)
        if len(first) == count:
            break
        count = len(first)
    else:
        return whole
    order = np.argsort(first, kind="stable")  # state 0 stays the first
    number = np.append(np.argsort(order).astype(np.int32)[block], np.int32(-1))
    kept = first[order]
    return PatternAutomaton(
        number[whole.next_state[kept]], whole.accepting[kept], whole.loop[kept], whole.counts[kept], whole.bounds
    )
