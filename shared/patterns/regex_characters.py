"""Reads the characters of a regular expression: escapes, classes such as \\d and \\p{L}, and sets in brackets."""

import re
from collections.abc import Sequence

from shared.errors import BadInput
from shared.patterns.characters import (
    ALL,
    COMMON,
    WIDE,
    Codes,
    Range,
    posix_class,
    property_class,
    rust_classes,
    without,
)
from shared.patterns.compile_budget import current_budget

CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|[xuU]\{([0-9A-Fa-f]{1,6})\}")
PROPERTY = re.compile(r"[pP](?:([A-Za-z])|\{(\^?)([\w =:-]+)\})")
POSIX = re.compile(r"\[:(\^?)([a-z]+):\]")
SPACES = re.compile(r"(?:\s|#.*)+")
OPERATORS = ("&&", "--", "~~")  # of sets: in both, in the first alone, in one of them
OTHER_CASES = ((0x212A, 0x212A), (0x17F, 0x17F))  # other letters that are k and s in lower case
MAX_NESTING = 100
# i: letters of both cases; m: ^ and $ are those of lines; s: a dot also matches line ends; x: spaces and comments count
# for nothing
Flags = frozenset[str]


class CharacterReader:
    """Reads a pattern from its start. `of_rust`: as Rust's regex reads it, else as ECMAScript does, with the characters
    on which languages agree. Every method raises BadInput if the pattern is not valid."""

    def __init__(self, text: str, *, of_rust: bool) -> None:
        self._text, self._at, self._nesting, self._of_rust = text, 0, 0, of_rust
        self._is_negated = False  # within an odd number of negative look-aheads

    def _is_at(self, *texts: str) -> bool:
        return self._text.startswith(texts, self._at)

    def _skip_spaces(self, flags: Flags) -> None:
        if "x" in flags and (found := SPACES.match(self._text, self._at)):
            self._at = found.end()

    def _known_class(self, *, inverted: bool) -> Codes | None:
        """The characters of a class such as \\d or \\p{L}, if one is here. `inverted`: for a negated set, so with the
        characters of any language, as the rest must be common to all."""
        inverted ^= self._is_negated
        letter, found = self._text[self._at : self._at + 1], PROPERTY.match(self._text, self._at)
        if letter in COMMON:
            self._at += 1
            codes = rust_classes()[letter] if self._of_rust else COMMON[letter][inverted]
        elif found is None:
            return None
        else:
            self._at = found.end()
            is_negated = (letter == "P") != bool(found[2])
            codes = property_class(found[1] or found[3], is_negated=is_negated, inverted=inverted)
        current_budget().spend(len(codes) // 8)
        return codes

    def _code(self, *, may_be_half: bool = False) -> int:
        """The character of an escape; `may_be_half`: it may also be half of a surrogate pair, which no text has."""
        found, sign = HEX.match(self._text, self._at), self._text[self._at : self._at + 1]
        if found is not None:
            self._at = found.end()
            code = int(found[found.lastindex or 0], 16)
            if 0xD800 <= code < 0xE000 and not may_be_half:
                raise BadInput(f"\\u{code:X} is half of a character; accepted is a whole one: \\u{{1F600}}", "pattern")
            if code > 0x10FFFF:
                raise BadInput(f"{code:X} is no character", "pattern")
            return code
        if not sign or (sign not in CONTROLS and sign.isalnum()):
            raise BadInput(f"the escape \\{sign} is not known", "pattern")
        self._at += 1
        return CONTROLS.get(sign, ord(sign))

    def _set(self, flags: Flags) -> Codes:
        """The characters of a set in brackets."""
        self._at += 1
        inverted = self._is_at("^")
        self._at += inverted
        self._skip_spaces(flags)
        start, codes, found, operator = self._at, list[Range](), None, ""
        while not self._is_at("]") or (self._of_rust and self._at == start):
            if self._at >= len(self._text):
                raise BadInput("a [ without its ]", "pattern")
            if self._of_rust and self._at > start and self._is_at(*OPERATORS):
                found = _combined(found, operator, self._folded(codes, flags, inverted=inverted))
                codes, operator = [], self._text[self._at : self._at + 2]
                self._at += 2
            else:
                self._add_member(codes, flags, inverted=inverted)
            self._skip_spaces(flags)
        if self._at == start:
            raise BadInput("a ] that may be the end of the set or its first character", "pattern")
        self._at += 1
        whole = _combined(found, operator, self._folded(codes, flags, inverted=inverted))
        return without(ALL, whole) if inverted else whole

    def _add_member(self, codes: list[Range], flags: Flags, *, inverted: bool) -> None:
        """Add a set within the set, a class, a range or a character."""
        posix = POSIX.match(self._text, self._at)
        if self._of_rust and posix is not None:
            self._at = posix.end()
            named = posix_class(posix[2])
            codes += without(ALL, named) if posix[1] else named
        elif self._of_rust and self._is_at("["):
            self._nesting += 1
            if self._nesting > MAX_NESTING:
                raise BadInput(f"the pattern has more than {MAX_NESTING} sets within each other", "pattern")
            codes += self._set(flags)
            self._nesting -= 1
        elif (first := self._character_or_class(codes, inverted=inverted)) is not None:
            last: int | None = first
            if self._is_at("-") and not self._is_at("-]", "--" if self._of_rust else "-]"):
                self._at += 1
                last = self._character_or_class(codes, inverted=inverted) if self._at < len(self._text) else None
            if last is None or last < first:
                raise BadInput("a set has an invalid range, such as [z-a]", "pattern")
            codes.append((first, last))

    def _character_or_class(self, codes: list[Range], *, inverted: bool) -> int | None:
        """A character; None after a class such as \\d, which it adds."""
        sign = self._text[self._at]
        self._at += 1
        if sign != "\\":
            return ord(sign)
        if (found := self._known_class(inverted=inverted)) is not None:
            codes += found
            return None
        if self._is_at("b"):
            self._at += 1
            return 8
        return self._code(may_be_half=inverted)

    def _folded(self, codes: Sequence[Range], flags: Flags, *, inverted: bool = False) -> Codes:
        """With the letters of the other case, if the flags have i. `inverted`: as in `_known_class`."""
        if "i" not in flags:
            return tuple(codes)
        narrow = [each for each in codes if each != WIDE]
        current_budget().spend(sum(last - first for first, last in narrow) // 8)
        found = [*codes, *(OTHER_CASES if inverted != self._is_negated else ())]
        for character in (chr(code) for first, last in narrow for code in range(first, last + 1)):
            others = {character.lower(), character.upper()} - {character}
            found += [(ord(each), ord(each)) for each in others if len(each) == 1]
        return tuple(found)


def _combined(left: Codes | None, operator: str, right: Codes) -> Codes:
    if left is None:
        return right
    match operator:
        case "&&":
            return without(left, without(ALL, right))
        case "--":
            return without(left, right)
    return (*without(left, right), *without(right, left))
