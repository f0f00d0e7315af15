"""Ranges of characters, and their bytes in UTF-8."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

SURROGATES = (0xD800, 0xDFFF)
MUST_ESCAPE = ((0, 31), (34, 34), (92, 92), (127, 127))  # in a JSON string; DEL by our choice
ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 47: "/", 92: "\\"}  # by character, after a backslash

Range = tuple[int, int]  # first and last
ALL: tuple[Range, ...] = ((0, 0x10FFFF),)


@lru_cache(10_000)
def encoded(codes: tuple[Range, ...]) -> list[tuple[Range, ...]]:
    """The characters in UTF-8: sequences of ranges of bytes."""
    return [each for first, last in without(codes, (SURROGATES,)) for each in _encoded(first, last)]


def _encoded(first: int, last: int) -> Iterator[tuple[Range, ...]]:
    split = next((limit for limit in (0x7F, 0x7FF, 0xFFFF) if first <= limit < last), None)
    for bits in (6, 12, 18) if split is None and last > 0x7F else ():  # of the bytes after the first ones
        rest = (1 << bits) - 1
        if split is None and first | rest != last | rest:
            if first & rest:
                split = first | rest
            elif last & rest != rest:
                split = (last & ~rest) - 1
    if split is not None:
        yield from _encoded(first, split)
        yield from _encoded(split + 1, last)
    else:
        yield tuple(zip(chr(first).encode(), chr(last).encode(), strict=True))


def without(codes: Iterable[Range], others: Iterable[Range]) -> tuple[Range, ...]:
    """The codes that are not among the others, ascending."""
    found, holes, at = list[Range](), _disjoint(others), 0
    for first, last in _disjoint(codes):
        low = first
        while at < len(holes) and holes[at][0] <= last:
            if low < holes[at][0]:
                found.append((low, holes[at][0] - 1))
            low = max(low, holes[at][1] + 1)
            if low > last:  # the next codes may be in this hole, too
                break
            at += 1
        if low <= last:
            found.append((low, last))
    return tuple(found)


def _disjoint(codes: Iterable[Range]) -> list[Range]:
    """The same codes, ascending, in as few ranges as possible."""
    found: list[Range] = []
    for low, high in sorted(codes):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found
