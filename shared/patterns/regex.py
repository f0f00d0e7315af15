"""Reads regular expressions, of JSON Schema and of Rust, into parts.

It knows the syntax that both have, and look-ahead. Classes such as \\w are those of Rust, or have
the characters on which languages agree. `UnknownSyntaxError` is raised for the rest, which is left to outlines-core.
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial

from shared.errors import BadInput
from shared.patterns.byte_automaton import merged
from shared.patterns.character_classes import COMMON, LINE_ENDS, WIDE, Codes, category, rust_classes
from shared.patterns.characters import ALL, Range, without
from shared.patterns.compile_budget import TooLarge, current_budget
from shared.patterns.look_ahead import LookAhead
from shared.patterns.network import BEGIN, BEGIN_LINE, END, END_LINE
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import Anchor, Characters, FormPart, JoinedParts, MergedCharacters, RepeatedPart, either

CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|[xu]\{([0-9A-Fa-f]{1,6})\}")
CATEGORY = re.compile(r"([pP])(?:([LMNPSZ])|\{([LMNPSZ][a-z]?|C[cfo])\})")
GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|(?P<on>[ims]*)(?:-(?P<off>[ims]+))?(?P<end>[:)]))")
TIMES = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~")
MAX_NESTING = 100
MAX_TIMES_LENGTH = 20
Flags = frozenset[str]  # i: letters of both cases; m: ^ and $ are those of lines; s: a dot also matches line ends
MAX_PLAIN = 500  # states of a class, above which they are merged first, such as those of \w


class UnknownSyntaxError(Exception):
    """A syntax that only outlines-core knows."""


def read_regex(pattern: str, within: Codes = ALL, *, escaped: bool = False) -> FormPart:
    """Reads a pattern into a part. `within`: the characters that it may match. `escaped`: the texts are as JSON writes
    them in a string; classes have the characters on which languages agree.

    Raises: UnknownSyntaxError; TooLarge; BadInput for look-behind, back-references and word boundaries, and if it is
    nested too deep.
    """
    current_budget().spend(steps=len(pattern) // 2)
    characters = partial(_characters, within=within, escaped=escaped)
    return _Reader(pattern, characters, of_rust=not escaped).whole()


@lru_cache(10_000)
def _characters(codes: Codes, within: Codes, escaped: bool) -> FormPart:
    found = Characters(without(codes, without(ALL, within)), escaped)
    return found if found.size <= MAX_PLAIN else MergedCharacters(merged(automaton_of(found)))


def literal(text: str) -> str:
    """The pattern of this text alone."""
    return "".join(f"\\{character}" if character in SPECIAL else character for character in text)


class _Reader:
    def __init__(self, text: str, characters: Callable[[Codes], FormPart], *, of_rust: bool) -> None:
        self._text, self._at, self._nesting, self._of_rust = text, 0, 0, of_rust
        self._characters = characters
        # The end of ^ and of the look-aheads read so far directly after it; within these alone, ^ may follow look-ahead
        self._leading_end = 1 if text.startswith("^") else None
        self._has_read_look = self._is_in_leading_look = False

    def whole(self) -> FormPart:
        found = self._alternatives(Flags())
        if self._at < len(self._text):
            raise UnknownSyntaxError("a ) without its (")
        return found

    def _alternatives(self, flags: Flags) -> FormPart:
        ways: list[FormPart] = []
        parts: list[FormPart] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            group = GROUP.match(self._text, self._at)
            if self._text[self._at] == "|":
                self._at += 1
                ways.append(JoinedParts(tuple(parts)))
                parts = []
            elif group is not None and group["end"] == ")":  # until the end of the group around it
                self._at = group.end()
                flags = _changed(flags, group)
            else:
                parts.append(self._repeated(self._atom(flags)))
        return either([*ways, JoinedParts(tuple(parts))])

    def _repeated(self, part: FormPart) -> FormPart:
        while self._at < len(self._text) and self._text[self._at] in "*+?{":
            sign, found = self._text[self._at], TIMES.match(self._text, self._at)
            if sign == "{" and found is None:
                if self._of_rust:
                    raise UnknownSyntaxError("a { without its count; accepted is \\{")
                break
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, None))
            if found is not None:
                if len(found[0]) > MAX_TIMES_LENGTH:
                    raise TooLarge(f"a repetition such as {{1,9}} may have {MAX_TIMES_LENGTH} characters", "pattern")
                least = int(found[1])
                most = (int(found[3]) if found[3] else None) if found[2] else least
            if most is not None and most < least:
                raise UnknownSyntaxError("a range that is empty")
            self._at = found.end() if found is not None else self._at + 1
            if self._text[self._at : self._at + 1] == "?":  # the shortest match: the same texts
                self._at += 1
            part = RepeatedPart(part, least, most)
        return part

    def _atom(self, flags: Flags) -> FormPart:
        sign = self._text[self._at]
        if sign == "(":
            return self._group(flags)
        if sign == "[":
            return self._class(flags)
        self._at += 1
        if sign == "\\":
            return self._escape(flags)
        if sign == ".":
            ends = LINE_ENDS[:1] if self._of_rust else LINE_ENDS
            return self._characters(ALL if "s" in flags else without(ALL, ends))
        if sign in "^$":
            if sign == "^" and self._has_read_look and not self._is_in_leading_look:
                raise BadInput("^ after look-ahead is not supported", "pattern")
            begin, end = (BEGIN_LINE, END_LINE) if "m" in flags else (BEGIN, END)
            return Anchor(begin if sign == "^" else end)
        if sign in "*+?" or (sign == "{" and self._of_rust):
            raise UnknownSyntaxError(f"nothing to repeat before {sign}; accepted is \\{sign}")
        return self._characters(_folded([(ord(sign), ord(sign))], flags))

    def _group(self, flags: Flags) -> FormPart:
        sign = self._text[self._at : self._at + 3]
        is_look, was_in_leading_look = sign in {"(?=", "(?!"}, self._is_in_leading_look
        if self._text.startswith(("(?<=", "(?<!"), self._at):
            raise BadInput("look-behind is not supported", "pattern")
        is_leading = is_look and self._at == self._leading_end
        group = GROUP.match(self._text, self._at)
        if group is None and sign.startswith("(?") and not is_look:
            raise UnknownSyntaxError("a syntax error in a pattern with flags")
        self._at = self._at + 3 if is_look else group.end() if group is not None else self._at + 1
        self._has_read_look |= is_look
        self._is_in_leading_look = is_leading if is_look else was_in_leading_look
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise BadInput(f"the pattern has more than {MAX_NESTING} groups within each other", "pattern")
        inner = self._alternatives(_changed(flags, group) if group is not None else flags)
        self._nesting, self._is_in_leading_look = self._nesting - 1, was_in_leading_look
        if self._text[self._at : self._at + 1] != ")":
            raise UnknownSyntaxError("a ( without its )")
        self._at += 1
        if is_leading:
            self._leading_end = self._at
        return LookAhead(inner, sign == "(?!") if is_look else inner

    def _escape(self, flags: Flags) -> FormPart:
        sign = self._text[self._at : self._at + 1]
        if sign in {"A", "z"}:
            self._at += 1
            return Anchor(BEGIN if sign == "A" else END)
        if sign and sign in "bB123456789k":
            reason = "word boundaries" if sign in "bB" else "back-references"
            raise BadInput(f"{reason} are not supported", "pattern")
        codes = self._known_class(inverted=False)
        if codes is not None and sign in COMMON:
            return self._characters(codes)
        if codes is None:
            code = self._code()
            codes = ((code, code),)
        return self._characters(_folded([*codes], flags))

    def _known_class(self, *, inverted: bool) -> Codes | None:
        """The characters of a class such as \\d or \\p{L}, if one is here. `inverted`: for a negated set, so with the
        characters of any language, as the rest must be common to all."""
        letter, found = self._text[self._at : self._at + 1], CATEGORY.match(self._text, self._at)
        if letter in COMMON:
            self._at += 1
            return rust_classes()[letter] if self._of_rust else COMMON[letter][inverted]
        if found is None:
            return None
        codes = category(found[2] or found[3], is_negated=letter == "P", inverted=inverted)
        if not codes:
            raise UnknownSyntaxError("no category of characters")
        self._at = found.end()
        return codes

    def _code(self, *, may_be_half: bool = False) -> int:
        """The character of an escape; `may_be_half`: it may also be half of a surrogate pair, which no text has."""
        found, sign = HEX.match(self._text, self._at), self._text[self._at : self._at + 1]
        if found is not None:
            self._at = found.end()
            code = int(found[1] or found[2] or found[3], 16)
            if 0xD800 <= code < 0xE000 and not may_be_half:
                raise BadInput(f"\\u{code:X} is half of a character; accepted is a whole one: \\u{{1F600}}", "pattern")
            if code > 0x10FFFF:
                raise UnknownSyntaxError("no character")
            return code
        if not sign or (sign not in CONTROLS and sign.isalnum()):
            raise UnknownSyntaxError(f"the escape \\{sign}")
        self._at += 1
        return CONTROLS.get(sign, ord(sign))

    def _class(self, flags: Flags) -> FormPart:
        start = self._at
        inverted = self._text[start + 1 : start + 2] == "^"
        self._at += 1 + inverted
        if self._text[self._at : self._at + 1] == "]":
            raise UnknownSyntaxError("a ] that may be the class's end or its first character")
        codes: list[Range] = []
        while self._text[self._at : self._at + 1] not in {"]", ""}:
            first = self._member(inverted, codes)
            after = self._text[self._at + 1 : self._at + 2]
            if first is not None and self._text[self._at : self._at + 1] == "-" and after not in {"]", ""}:
                self._at += 1
                last = self._member(inverted, codes)
                if last is None or last < first:
                    raise UnknownSyntaxError("no range")
                codes.append((first, last))
            elif first is not None:
                codes.append((first, first))
        if self._at >= len(self._text):
            raise UnknownSyntaxError("a [ without its ]")
        self._at += 1
        folded = _folded(codes, flags)
        if inverted and "i" in flags:  # other letters that are k and s in lower case
            folded = (*folded, (0x212A, 0x212A), (0x17F, 0x17F))
        return self._characters(without(ALL, folded) if inverted else folded)

    def _member(self, inverted: bool, codes: list[Range]) -> int | None:
        """A character; None after a class such as \\d, which it adds."""
        sign, after = self._text[self._at], self._text[self._at + 1 : self._at + 2]
        self._at += 1
        if self._of_rust and (sign == "[" or (sign == after and sign in "&-~")):  # sets in sets
            raise UnknownSyntaxError("a syntax error in a pattern with sets in sets")
        if sign != "\\":
            return ord(sign)
        if (found := self._known_class(inverted=inverted)) is not None:
            codes += found
            return None
        if after == "b":
            self._at += 1
            return 8
        return self._code(may_be_half=inverted)


def _changed(flags: Flags, group: re.Match[str]) -> Flags:
    return (flags | set(group["on"] or "")) - set(group["off"] or "")


def _folded(codes: list[Range], flags: Flags) -> tuple[Range, ...]:
    """With the letters of the other case."""
    if "i" not in flags:
        return tuple(codes)
    narrow = [each for each in codes if each != WIDE]
    current_budget().spend(steps=sum(last - first for first, last in narrow) // 16)
    found = list(codes)
    for character in (chr(code) for first, last in narrow for code in range(first, last + 1)):
        others = {character.lower(), character.upper()} - {character}
        found += [(ord(each), ord(each)) for each in others if len(each) == 1]
    return tuple(found)
