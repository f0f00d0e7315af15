"""Characters as ranges of codes: their bytes in UTF-8, and the classes of regular expressions, such as \\d.

Languages differ about classes beyond ASCII. COMMON bounds what they accept; `rust_classes` has those of Rust.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import regex

from shared.errors import BadInput
from shared.patterns.compile_budget import current_budget

SURROGATES = (0xD800, 0xDFFF)
MUST_ESCAPE = ((0, 31), (34, 34), (92, 92), (127, 127))  # in a JSON string; DEL by our choice
ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 47: "/", 92: "\\"}  # by character, after a backslash

Range = tuple[int, int]  # first and last
Codes = tuple[Range, ...]
ALL: Codes = ((0, 0x10FFFF),)
WIDE = (0x80, 0x10FFFF)
LATIN: Codes = ((0, 0x24F),)  # for patterns that are too large with all of Unicode
DIGITS, LETTERS = ((48, 57),), ((48, 57), (65, 90), (95, 95), (97, 122))
SPACES = ((9, 13), (32, 32))
WIDE_SPACES = (
    *((0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
MATCHING = 5_000  # steps of the budget, for the time of one regular expression over all characters
LINE_ENDS = ((10, 10), (13, 13), (0x85, 0x85), (0x2028, 0x2029))
# The two escapes of a surrogate pair, after an even number of backslashes
PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


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
    """The codes that are not among the others, ascending, in as few ranges as possible."""
    codes = tuple(codes)
    # At each code, the change of the number of ranges around it; one of the others counts more than all codes together
    change = defaultdict[int, int](int)
    for ranges, weight in ((codes, 1), (others, -1 - len(codes))):
        for first, last in ranges:
            change[first] += weight
            change[last + 1] -= weight
    found, depth, start = list[Range](), 0, 0
    for at in sorted(change):
        was_within, depth = depth > 0, depth + change[at]
        if was_within and depth <= 0:
            found.append((start, at - 1))
        elif depth > 0 and not was_within:
            start = at
    return tuple(found)


# The characters of a JSON string: no control characters but those with a short escape
JSON_CODES: Codes = without(ALL, ((0, 7), (11, 11), (14, 31), (127, 127)))
# By letter, the characters that are in it in ECMAScript, Python and Rust, and those that may be in it in one of them
_LOWER: Mapping[str, tuple[Codes, Codes]] = {
    "d": (DIGITS, (*DIGITS, WIDE)),
    "w": (LETTERS, (*LETTERS, WIDE)),
    "s": (SPACES, (*SPACES, (28, 31), *WIDE_SPACES, (0xFEFF, 0xFEFF))),
}
COMMON = {
    **_LOWER,
    **{name.upper(): (without(ALL, wide), without(ALL, narrow)) for name, (narrow, wide) in _LOWER.items()},
}


@lru_cache(1)
def rust_classes() -> Mapping[str, Codes]:
    """Rust's classes by letter."""
    words = r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]"
    found = {"d": _matched(r"\p{Nd}"), "w": _matched(words), "s": (*SPACES, *WIDE_SPACES)}
    return found | {name.upper(): without(ALL, codes) for name, codes in found.items()}


def property_class(name: str, *, is_negated: bool, inverted: bool) -> Codes:
    """The characters with a property of Unicode, such as L, Letter or Script=Greek, or all others. Those that are not
    assigned, but may be later, are in neither; if `inverted`, for a negated set, in both. Raises: BadInput if there is
    no such property."""
    try:
        own = _matched(rf"\p{{{name}}}")
    except regex.error:
        raise BadInput(f"the property {name} of characters is not known", "pattern") from None
    unassigned = _matched(r"\p{Cn}")
    found = without(own, unassigned) if is_negated == inverted else (*own, *unassigned)
    return without(ALL, found) if is_negated else found


def posix_class(name: str) -> Codes:
    """The ASCII characters of a class of POSIX, such as alpha. Raises: BadInput if there is none."""
    try:
        return without(_matched(f"[[:{name}:]]" if name != "ascii" else r"\p{ASCII}"), (WIDE,))
    except regex.error:
        raise BadInput(f"the class [:{name}:] is not known", "pattern") from None


@lru_cache(256)
def _matched(pattern: str) -> Codes:
    current_budget().spend(MATCHING)
    found = regex.finditer(f"{pattern}+", _all_characters())
    return tuple((each.start(), each.end() - 1) for each in found)


@lru_cache(1)
def _all_characters() -> str:
    return "".join(map(chr, range(0x110000)))


def with_whole_characters(pattern: str) -> str:
    """The pattern with one escape, such as \\x{1F600}, in place of ECMAScript's two of a surrogate pair."""

    def whole(pair: re.Match[str]) -> str:
        return f"{pair[1]}\\x{{{0x10000 + ((int(pair[2], 16) - 0xD800) << 10) + int(pair[3], 16) - 0xDC00:X}}}"

    return PAIR.sub(whole, pattern)
