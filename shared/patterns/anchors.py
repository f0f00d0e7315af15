"""Conditions on places in a text: look-ahead, and anchors, which are ^ and $, \\A and \\z, and the edges of words.

Anchors are about the characters before and after a place. Languages differ about the words with characters that are not
ASCII, so that beside one neither \\b nor \\B holds; within a negative look-ahead both hold there.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from shared.errors import BadInput
from shared.patterns.byte_automaton import BYTES
from shared.patterns.network import Condition, Network
from shared.patterns.parts import FormPart

# Kinds of the character before or after a place. EDGE: there is none, as the text begins or ends; WIDE: not ASCII
KINDS = EDGE, NEWLINE, OTHER, WORD, WIDE = range(5)
ESCAPE = 5  # the place is within a character that JSON escapes, after its backslash
ANYTHING = frozenset(KINDS)
LINE_EDGE, NO_WORD = frozenset({EDGE, NEWLINE}), frozenset({EDGE, NEWLINE, OTHER})
WORD_BYTES = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
KIND_OF_BYTE = [
    WIDE if byte >= 0x80 else WORD if byte in WORD_BYTES else NEWLINE if byte == ord("\n") else OTHER
    for byte in range(BYTES)
]
KIND_IN_ESCAPE = [NEWLINE if byte == ord("n") else OTHER for byte in range(BYTES)]


def condition(before: Collection[int], after: frozenset[int]) -> Condition:
    """That the characters beside a place are of these kinds."""
    return tuple(after if kind in before else frozenset() for kind in KINDS)


def word_condition(*, is_edge: bool, is_negated: bool) -> Condition:
    """Of \\b, or of \\B if it is no edge. `is_negated`: within a negative look-ahead."""
    unsure = frozenset({WIDE} if is_negated else ())
    sides = [frozenset({WORD}) if (kind == WORD) != is_edge else NO_WORD for kind in KINDS]
    sides[WIDE] = ANYTHING if is_negated else frozenset()
    return tuple(side | unsure for side in sides)


BEGIN, BEGIN_LINE = condition({EDGE}, ANYTHING), condition(LINE_EDGE, ANYTHING)
END, END_LINE = condition(KINDS, frozenset({EDGE})), condition(KINDS, LINE_EDGE)


@dataclass(frozen=True, slots=True)
class Anchor(FormPart):
    condition: Condition
    is_escaped: bool  # of texts as JSON writes them in a string
    size = 1

    def build(self, network: Network, start: int) -> int:
        network.is_escaped |= self.is_escaped
        network.conditions.append(self.condition)
        number = BYTES + len(network.conditions) - 1
        return network.step(start, number, number)


@dataclass(frozen=True, slots=True)
class LookAhead(FormPart):
    """A look-ahead: the rest of the text begins with the part, or, if `is_negative`, does not."""

    part: FormPart
    is_negative: bool
    size = 1

    def build(self, *_: object) -> int:
        """Raises: BadInput, for one that `of_regex` has not replaced."""
        raise BadInput("look-ahead within a repetition is not supported", "pattern")


def without_anchors(network: Network, start: int, end: int, before: int) -> tuple[Network, int, set[int]]:
    """The same texts without anchors: a network, its start and its ends. `before`: the kind of what is before them. A
    state becomes several, one for each pair of:

    - `before`, the kind of what is before this place in the text.
    - `wanted`, the kinds that anchors have allowed since the last character. The next one, or the end, is of these or
      does not exist, and a new state wants nothing.

    A network with anchors has no counters.
    """
    found = Network()
    numbers: dict[tuple[int, int, frozenset[int]], int] = {}
    waiting: list[tuple[int, int, frozenset[int]]] = []
    alike = _alike(network.conditions)
    plain, in_escape = _kinds_of_bytes(alike, is_escaped=network.is_escaped)

    def number(state: int, before: int, wanted: frozenset[int]) -> int:
        key = state, before, wanted
        if key not in numbers:
            numbers[key] = found.add()
            waiting.append(key)
        return numbers[key]

    first = number(start, alike[before], ANYTHING)
    for key in waiting:
        state, before, wanted = key
        own = numbers[key]
        found.empty[own] += [number(target, before, wanted) for target in network.empty[state]]
        for low, high, target in network.edges[state]:
            if low >= BYTES:
                if after := wanted & network.conditions[low - BYTES][before]:
                    found.empty[own].append(number(target, before, after))
                continue
            for kind, least, most in _of_one_kind(low, high, in_escape if before == ESCAPE else plain):
                if kind == ESCAPE:
                    found.edges[own].append((least, most, number(target, ESCAPE, wanted)))
                elif kind in wanted:
                    found.edges[own].append((least, most, number(target, kind, ANYTHING)))
    return found, first, {own for (state, _, wanted), own in numbers.items() if state == end and EDGE in wanted}


def _alike(conditions: Collection[Condition]) -> list[int]:
    """For each kind the first one that all conditions take alike."""
    keys = [[(each[kind], [kind in after for after in each]) for each in conditions] for kind in KINDS]
    return [keys.index(key) for key in keys]


def _kinds_of_bytes(alike: list[int], *, is_escaped: bool) -> tuple[list[int], list[int]]:
    """The kind of each byte, and that after the backslash of an escape."""
    plain, in_escape = ([alike[kind] for kind in kinds] for kinds in (KIND_OF_BYTE, KIND_IN_ESCAPE))
    if is_escaped and len({alike[NEWLINE], alike[OTHER], alike[WORD]}) > 1:
        plain[ord("\\")] = ESCAPE
    return plain, in_escape


def _of_one_kind(low: int, high: int, kinds: list[int]) -> Iterator[tuple[int, int, int]]:
    """The ranges of bytes of one kind, each after its kind."""
    cuts = (byte for byte in range(low + 1, high + 1) if kinds[byte] != kinds[byte - 1])
    for first, stop in pairwise([low, *cuts, high + 1]):
        yield kinds[first], first, stop - 1
