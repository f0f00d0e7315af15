"""Anchors: ^ and $, \\A and \\z, and the edges of words, as conditions on the bytes before and after them.

Languages differ about the words with characters that are not ASCII, so that beside one neither \\b nor \\B holds.
"""

from collections.abc import Iterator
from itertools import pairwise

from shared.patterns.byte_automaton import BYTES
from shared.patterns.network import BEGIN, BEGIN_LINE, END, END_LINE, NO_WORD_EDGE, WORD_EDGE, Network

# Kinds of the character before a place, beside BEGIN and BEGIN_LINE: another character, that of a word, one that is not
# ASCII, or the backslash of a character that JSON escapes, which is in no word
OTHER, WORD, WIDE, ESCAPE = range(4)
# Kinds that anchors ask for after the place, beside END and END_LINE. Two of STRICTNESS ask for the stricter one, which
# fulfils both; none of them fulfils A_WORD.
ANYTHING, NO_WORD, A_WORD = range(3)
STRICTNESS = {ANYTHING: 0, NO_WORD: 1, END_LINE: 2, END: 3}
NEWLINE, BACKSLASH = 10, 92
WORD_BYTES = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")


def without_anchors(network: Network, start: int, end: int) -> tuple[Network, int, set[int]]:
    """The same texts without anchors: a network, its start and its ends. A state becomes several, one for each pair of:

    - `before`, the kind of what is before this place in the text.
    - `wanted`, the kind that anchors have asked for since the last byte. The next byte, or the end, fulfils it or does
      not exist, and a new state wants nothing.

    A network with anchors has no counters.
    """
    found, ends = Network(), set[int]()
    numbers: dict[tuple[int, int, int], int] = {}
    waiting: list[tuple[int, int, int]] = []
    has_words = any(low in {WORD_EDGE, NO_WORD_EDGE} for edges in network.edges for low, _, _ in edges)

    def number(state: int, before: int, wanted: int) -> int:
        key = state, before, wanted
        if key not in numbers:
            numbers[key] = found.add()
            waiting.append(key)
        return numbers[key]

    first = number(start, BEGIN, ANYTHING)
    for key in waiting:
        state, before, wanted = key
        own = numbers[key]
        if state == end and wanted != A_WORD:
            ends.add(own)
        found.empty[own] += [number(target, before, wanted) for target in network.empty[state]]
        for low, high, target in network.edges[state]:
            if low >= BYTES:
                if (after := _after_anchor(low, before, wanted)) is not None:
                    found.empty[own].append(number(target, before, after))
                continue
            for kind, least, most in _kinds(low, high, has_words=has_words, is_escaped=network.is_escaped):
                if _fulfils(kind, wanted):
                    then = OTHER if before == ESCAPE else kind
                    found.edges[own].append((least, most, number(target, then, ANYTHING)))
    return found, first, ends


def _after_anchor(anchor: int, before: int, wanted: int) -> int | None:
    """The kind that is wanted after an anchor; None if the anchor does not hold."""
    if anchor in {BEGIN, BEGIN_LINE}:
        return wanted if before in {BEGIN, anchor} else None
    if anchor in {WORD_EDGE, NO_WORD_EDGE}:
        if before == WIDE:
            return None
        anchor = A_WORD if (before == WORD) != (anchor == WORD_EDGE) else NO_WORD
    if A_WORD in {anchor, wanted}:
        return A_WORD if {anchor, wanted} <= {A_WORD, ANYTHING} else None
    return max(anchor, wanted, key=STRICTNESS.__getitem__)


def _fulfils(kind: int, wanted: int) -> bool:
    """Whether a byte of this kind is what is wanted."""
    if wanted == NO_WORD:
        return kind in {OTHER, ESCAPE, BEGIN_LINE}
    return wanted == ANYTHING or (wanted, kind) in {(A_WORD, WORD), (END_LINE, BEGIN_LINE)}


def _kinds(low: int, high: int, *, has_words: bool, is_escaped: bool) -> Iterator[tuple[int, int, int]]:
    """The ranges of bytes of one kind, each after its kind. Without words, only the ends of lines differ."""
    kinds = (KINDS_IN_JSON if is_escaped else KINDS) if has_words else LINE_KINDS
    cuts = (byte for byte in range(low + 1, high + 1) if kinds[byte] != kinds[byte - 1])
    for first, stop in pairwise([low, *cuts, high + 1]):
        yield kinds[first], first, stop - 1


LINE_KINDS = [BEGIN_LINE if byte == NEWLINE else OTHER for byte in range(BYTES)]
KINDS = [WIDE if byte >= 0x80 else WORD if byte in WORD_BYTES else LINE_KINDS[byte] for byte in range(BYTES)]
KINDS_IN_JSON = [ESCAPE if byte == BACKSLASH else KINDS[byte] for byte in range(BYTES)]
