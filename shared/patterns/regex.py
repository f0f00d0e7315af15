"""Reads regular expressions, of JSON Schema and of Rust, into parts.

Look-ahead is read, too. Look-behind and back-references are refused.
"""

import re
from functools import lru_cache

from shared.errors import BadInput
from shared.patterns.anchors import BEGIN, BEGIN_LINE, END, END_LINE, Anchor, LookAhead, word_condition
from shared.patterns.byte_automaton import merged
from shared.patterns.characters import ALL, COMMON, LINE_ENDS, Codes, without
from shared.patterns.compile_budget import TooLarge, current_budget
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import Characters, FormPart, JoinedParts, MergedCharacters, RepeatedPart, either
from shared.patterns.regex_characters import MAX_NESTING, CharacterReader, Flags

# U, the shortest match first, changes no text that matches as a whole
GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|(?P<on>[imsxuU]*)(?:-(?P<off>[imsxU]+))?(?P<end>[:)]))")
TIMES = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
ANCHORS = {"A": BEGIN, "z": END, "Z": END}
SYNTAX = "the syntax of Rust's regex and look-ahead, without look-behind and back-references"
MAX_TIMES_LENGTH = 20
MAX_PLAIN = 500  # states of a class, above which they are merged first, such as those of \w


def read_regex(pattern: str, within: Codes = ALL, *, escaped: bool = False) -> FormPart:
    """Reads a pattern into a part. `within`: the characters that it may match. `escaped`: of JSON Schema, whose texts
    are as JSON writes them in a string; classes such as \\w have the characters on which languages agree, else those
    of Rust.

    Raises: TooLarge; BadInput if it is not valid, or has a syntax that is not supported.
    """
    current_budget().spend(len(pattern) // 2)
    try:
        return _Reader(pattern, within, of_rust=not escaped).whole()
    except TooLarge:
        raise
    except BadInput as error:
        raise BadInput(f"the pattern is not valid ({error.message}); accepted: {SYNTAX}", "pattern") from None


@lru_cache(10_000)
def _characters(codes: Codes, within: Codes, escaped: bool) -> FormPart:
    found = Characters(without(codes, without(ALL, within)), escaped)
    return found if found.size <= MAX_PLAIN else MergedCharacters(merged(automaton_of(found)))


class _Reader(CharacterReader):
    def __init__(self, text: str, within: Codes, *, of_rust: bool) -> None:
        super().__init__(text, of_rust=of_rust)
        self._within = within

    def _characters(self, codes: Codes) -> FormPart:
        """One of these characters. All of them, within a negative look-ahead, so that it refuses enough."""
        return _characters(codes, ALL if self._is_negated else self._within, not self._of_rust)

    def whole(self) -> FormPart:
        found = self._alternatives(Flags())
        if self._at < len(self._text):
            raise BadInput("a ) without its (", "pattern")
        return found

    def _alternatives(self, flags: Flags) -> FormPart:
        ways: list[FormPart] = []
        parts: list[FormPart] = []
        self._skip_spaces(flags)
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
                parts.append(self._repeated(self._atom(flags), flags))
            self._skip_spaces(flags)
        return either([*ways, JoinedParts(tuple(parts))])

    def _repeated(self, part: FormPart, flags: Flags) -> FormPart:
        self._skip_spaces(flags)
        while self._at < len(self._text) and self._text[self._at] in "*+?{":
            sign, found = self._text[self._at], TIMES.match(self._text, self._at)
            if sign == "{" and found is None:
                if self._of_rust:
                    raise BadInput("a { without its count; accepted is \\{", "pattern")
                break
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, None))
            if found is not None:
                if len(found[0]) > MAX_TIMES_LENGTH:
                    raise TooLarge(f"a repetition such as {{1,9}} may have {MAX_TIMES_LENGTH} characters", "pattern")
                least = int(found[1])
                most = (int(found[3]) if found[3] else None) if found[2] else least
            if most is not None and most < least:
                raise BadInput(f"a repetition whose range is empty: {found and found[0]}", "pattern")
            self._at = found.end() if found is not None else self._at + 1
            self._at += self._is_at("?")  # the shortest match: the same texts
            self._skip_spaces(flags)
            part = RepeatedPart(part, least, most)
        return part

    def _atom(self, flags: Flags) -> FormPart:
        sign = self._text[self._at]
        if sign == "(":
            return self._group(flags)
        if sign == "[":
            return self._characters(self._set(flags))
        self._at += 1
        if sign == "\\":
            return self._escape(flags)
        if sign == ".":
            ends = LINE_ENDS[:1] if self._of_rust or self._is_negated else LINE_ENDS
            return self._characters(ALL if "s" in flags else without(ALL, ends))
        if sign in "^$":
            begin, end = (BEGIN_LINE, END_LINE) if "m" in flags else (BEGIN, END)
            return Anchor(begin if sign == "^" else end, not self._of_rust)
        if sign in "*+?" or (sign == "{" and self._of_rust):
            raise BadInput(f"nothing to repeat before {sign}; accepted is \\{sign}", "pattern")
        return self._characters(self._folded([(ord(sign), ord(sign))], flags))

    def _group(self, flags: Flags) -> FormPart:
        sign = self._text[self._at : self._at + 3]
        is_look, was_negated = sign in {"(?=", "(?!"}, self._is_negated
        if self._is_at("(?<=", "(?<!"):
            raise BadInput("look-behind is not supported", "pattern")
        group = GROUP.match(self._text, self._at)
        if group is None and sign.startswith("(?") and not is_look:
            raise BadInput(f"the group {self._text[self._at : self._at + 4]} is not known", "pattern")
        self._at = self._at + 3 if is_look else group.end() if group is not None else self._at + 1
        self._is_negated ^= sign == "(?!"
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise BadInput(f"the pattern has more than {MAX_NESTING} groups within each other", "pattern")
        inner = self._alternatives(_changed(flags, group) if group is not None else flags)
        self._nesting, self._is_negated = self._nesting - 1, was_negated
        if not self._is_at(")"):
            raise BadInput("a ( without its )", "pattern")
        self._at += 1
        return LookAhead(inner, sign == "(?!") if is_look else inner

    def _escape(self, flags: Flags) -> FormPart:
        sign = self._text[self._at : self._at + 1]
        if sign in ANCHORS:
            self._at += 1
            return Anchor(ANCHORS[sign], not self._of_rust)
        if sign in {"b", "B"}:
            self._at += 1
            return Anchor(word_condition(is_boundary=sign == "b", is_negated=self._is_negated), not self._of_rust)
        if sign and sign in "123456789k":
            raise BadInput("back-references are not supported", "pattern")
        codes = self._known_class(inverted=False)
        if codes is None:
            code = self._code()
            codes = ((code, code),)
        return self._characters(codes if sign in COMMON else self._folded(codes, flags))


def _changed(flags: Flags, group: re.Match[str]) -> Flags:
    return (flags | set(group["on"] or "")) - set(group["off"] or "")
