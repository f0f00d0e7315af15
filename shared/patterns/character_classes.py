"""Characters of regular expressions: of classes such as \\d, and of escapes.

Languages differ about classes beyond ASCII. COMMON bounds what they accept; `rust_classes` has those of Rust.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from shared.patterns.characters import ALL, Range, without

Codes = tuple[Range, ...]
WIDE = (0x80, 0x10FFFF)
LATIN: Codes = ((0, 0x24F),)  # for patterns that are too large with all of Unicode
DIGITS, LETTERS = ((48, 57),), ((48, 57), (65, 90), (95, 95), (97, 122))
SPACES = ((9, 13), (32, 32))
WIDE_SPACES = (
    *((0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
)
LINE_ENDS = ((10, 10), (13, 13), (0x85, 0x85), (0x2028, 0x2029))
# Rust's \w has these, too, though not by their category
JOINERS, CIRCLED = ((0x200C, 0x200D),), ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
# The two escapes of a surrogate pair, after an even number of backslashes
PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")

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
    """Rust's classes by letter, from Python's tables of Unicode, whose version may differ."""
    words = (*_of_categories("[LM].|Nd|Nl|Pc"), *JOINERS, *CIRCLED)
    found: dict[str, Codes] = {"d": _of_categories("Nd"), "w": without(words, ()), "s": (*SPACES, *WIDE_SPACES)}
    return found | {name.upper(): without(ALL, codes) for name, codes in found.items()}


def category(name: str, *, is_negated: bool, inverted: bool) -> Codes:
    """The characters of a general category of Unicode, such as L or Lu, or all others. Those that Python's tables do
    not assign, but later ones may, are in neither; if `inverted`, for a negated set, in both."""
    own = f"{name}." if len(name) == 1 else name
    found = _of_categories(own if is_negated == inverted else f"{own}|Cn")
    return without(ALL, found) if is_negated else found


@lru_cache(64)
def _of_categories(pattern: str) -> Codes:
    return tuple((found.start() // 2, found.end() // 2 - 1) for found in re.finditer(f"(?:{pattern})+", _categories()))


@lru_cache(1)
def _categories() -> str:
    """Two letters for each character, the first is a capital."""
    return "".join(map(unicodedata.category, map(chr, range(0x110000))))


def with_whole_characters(pattern: str) -> str:
    """The pattern with one escape, such as \\x{1F600}, in place of ECMAScript's two of a surrogate pair."""

    def whole(pair: re.Match[str]) -> str:
        return f"{pair[1]}\\x{{{0x10000 + ((int(pair[2], 16) - 0xD800) << 10) + int(pair[3], 16) - 0xDC00:X}}}"

    return PAIR.sub(whole, pattern)
