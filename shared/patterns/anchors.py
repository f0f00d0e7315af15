"""Conditions on places in a text: look-ahead, and anchors, which are ^ and $, \\A and \\z, and the edges of words.

An anchor is a condition on the characters before and after a place. Languages differ on whether a character that is not
ASCII belongs to a word. To accept only what all of them accept, neither \\b nor \\B matches beside one. A negative
look-ahead must refuse what any of them matches, so that within it both match there.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from shared.errors import BadInput
from shared.patterns.byte_automaton import BYTES
from shared.patterns.network import Condition, Network
from shared.patterns.parts import FormPart

# Kinds of the character before or after a place. EDGE: there is none, as the text begins or ends; WIDE: not ASCII, so
# each of its bytes in UTF-8
KINDS = EDGE, NEWLINE, OTHER, WORD, WIDE = range(5)
ESCAPE = 5  # no kind: JSON's backslash was read, and the next byte decides the kind
ANYTHING = frozenset(KINDS)
LINE_EDGE, NO_WORD = frozenset({EDGE, NEWLINE}), frozenset({EDGE, NEWLINE, OTHER})
WORD_BYTES = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
KIND_OF_BYTE = [
    WIDE if byte >= 0x80 else WORD if byte in WORD_BYTES else NEWLINE if byte == ord("\n") else OTHER
    for byte in range(BYTES)
]
# After JSON's backslash: of a short escape, as JSON strings have no others here (`json_strings`)
KIND_IN_ESCAPE = [NEWLINE if byte == ord("n") else OTHER for byte in range(BYTES)]


def condition(before: Collection[int], after: frozenset[int]) -> Condition:
    """By the kind before a place, the kinds allowed after it: `after` where it is one of `before`, else none."""
    return tuple(after if kind in before else frozenset() for kind in KINDS)


def word_condition(*, is_boundary: bool, is_negated: bool) -> Condition:
    """The condition of \\b, or of \\B if not `is_boundary`. `is_negated`: within a negative look-ahead."""
    unsure = frozenset({WIDE} if is_negated else ())  # kinds that also match, as languages differ about them
    sides = [frozenset({WORD}) if (kind == WORD) != is_boundary else NO_WORD for kind in KINDS]
    sides[WIDE] = ANYTHING if is_negated else frozenset()
    return tuple(side | unsure for side in sides)


BEGIN, BEGIN_LINE = condition({EDGE}, ANYTHING), condition(LINE_EDGE, ANYTHING)
END, END_LINE = condition(KINDS, frozenset({EDGE})), condition(KINDS, LINE_EDGE)


@dataclass(frozen=True, slots=True)
class Anchor(FormPart):
    condition: Condition
    is_escaped: bool  # the text is read as JSON writes it in a string
    size = 1

    def build(self, network: Network, start: int) -> int:
        network.is_escaped |= self.is_escaped
        network.conditions.append(self.condition)
        number = BYTES + len(network.conditions) - 1  # numbers of edges from BYTES on are conditions, and read no byte
        return network.step(start, number, number)


@dataclass(frozen=True, slots=True)
class LookAhead(FormPart):
    """A look-ahead: the rest of the text begins with the part, or, if `is_negative`, does not."""

    part: FormPart
    is_negative: bool
    size = 1

    def build(self, *_: object) -> int:
        """Raises: BadInput: `of_regex` replaces each one that is not within a repetition."""
        raise BadInput("look-ahead within a repetition is not supported", "pattern")


def without_anchors(network: Network, start: int, end: int, before: int) -> tuple[Network, int, set[int]]:
    """A network without anchors that accepts the same texts, its start and its ends. `before`: the kind of the
    character before the texts. `network` has no counters.

    A state becomes several, one for each pair of `last`, the kind of the last character, and `allowed`, the kinds of
    which the next one, or EDGE at the end, must be. A character allows all kinds again; an anchor allows fewer. So in
    a\\bc, after `a` (WORD), \\b leaves EDGE, NEWLINE and OTHER; `c` is WORD, and its edge is dropped.
    """
    found = Network()
    numbers: dict[tuple[int, int, frozenset[int]], int] = {}
    waiting: list[tuple[int, int, frozenset[int]]] = []
    alike = _representatives(network.conditions)
    plain, in_escape = _kinds_of_bytes(alike, is_escaped=network.is_escaped)

    def number_of(state: int, last: int, allowed: frozenset[int]) -> int:
        key = state, last, allowed
        if key not in numbers:
            numbers[key] = found.add()
            waiting.append(key)
        return numbers[key]

    first = number_of(start, alike[before], ANYTHING)
    for key in waiting:
        state, last, allowed = key
        own = numbers[key]
        found.empty[own] += [number_of(target, last, allowed) for target in network.empty[state]]
        for low, high, target in network.edges[state]:
            if low >= BYTES:
                if after := allowed & network.conditions[low - BYTES][last]:
                    found.empty[own].append(number_of(target, last, after))
                continue
            for kind, least, most in _of_one_kind(low, high, in_escape if last == ESCAPE else plain):
                if kind == ESCAPE:
                    found.edges[own].append((least, most, number_of(target, ESCAPE, allowed)))
                elif kind in allowed:
                    found.edges[own].append((least, most, number_of(target, kind, ANYTHING)))
    return found, first, {own for (state, _, allowed), own in numbers.items() if state == end and EDGE in allowed}


def _representatives(conditions: Collection[Condition]) -> list[int]:
    """For each kind the first one that all conditions treat like it, so that there are fewer states."""
    keys = [[(each[kind], [kind in after for after in each]) for each in conditions] for kind in KINDS]
    return [keys.index(key) for key in keys]


def _kinds_of_bytes(alike: list[int], *, is_escaped: bool) -> tuple[list[int], list[int]]:
    """The kind of each byte, and of each byte after JSON's backslash. A backslash is followed only if
    conditions treat the characters differently that it may escape."""
    plain, in_escape = ([alike[kind] for kind in kinds] for kinds in (KIND_OF_BYTE, KIND_IN_ESCAPE))
    if is_escaped and len({alike[NEWLINE], alike[OTHER], alike[WORD]}) > 1:
        plain[ord("\\")] = ESCAPE
    return plain, in_escape


def _of_one_kind(low: int, high: int, kinds: list[int]) -> Iterator[tuple[int, int, int]]:
    """Splits the bytes from `low` to `high` where their kind changes. Yields: kind, first and last byte."""
    cuts = (byte for byte in range(low + 1, high + 1) if kinds[byte] != kinds[byte - 1])
    for first, stop in pairwise([low, *cuts, high + 1]):
        yield kinds[first], first, stop - 1
