"""Ranges of characters, and their bytes in UTF-8."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

SURROGATES = (0xD800, 0xDFFF)
MUST_ESCAPE = ((0, 31), (34, 34), (92, 92), (127, 127))  # in a JSON string; DEL by our choice
ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 47: "/", 92: "\\"}  # by character, after a backslash

Range = tuple[int, int]  # first and last


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
    found = sorted(codes)
    for low, high in others:
        parts = [part for a, b in found for part in ((a, min(b, low - 1)), (max(a, high + 1), b))]
        found = sorted({(a, b) for a, b in parts if a <= b})
    return tuple(found)
