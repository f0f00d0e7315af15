"""Reads grammars in GBNF, the notation of llama.cpp and vLLM, into parts of texts.

A grammar has rules such as `root ::= "yes" | list`, `list ::= [a-z]+ ("," [a-z]+)*`, and comments from # to the end of
the line. The text is one of the rule `root`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shared.errors import BadInput
from shared.patterns.characters import ALL, Range, without
from shared.patterns.network import Network
from shared.patterns.parts import Characters, FormPart, JoinedParts, Literal, RepeatedPart, either

ROOT = "root"
MAX_NESTING = 50  # of groups
MAX_REPEATS = 10_000
MAX_TIMES_LENGTH = 20  # characters of a range such as 1,9
ACCEPTED = 'accepted is GBNF, such as: root ::= "yes" | "no"'
TOKENS = re.compile(
    r"""(?P<skip>(?:\s|\#[^\n]*)+)|(?P<rule>[A-Za-z_][A-Za-z0-9_-]*)\s*::=|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    |"(?P<text>(?:[^"\\\n]|\\.)*)"|\[(?P<set>(?:[^\]\\\n]|\\.)*)\]|\{\s*(?P<times>[0-9]+\s*(?:,\s*[0-9]*)?)\s*\}
    |(?P<sign>[()|*+?.])""",
    re.VERBOSE,
)
CHARACTERS = re.compile(r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)|([^\\])", re.DOTALL)
ESCAPES = {each: each for each in "\\\"'/?[]-^"}
ESCAPES |= {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}


@dataclass(frozen=True, slots=True)
class Reference(FormPart):
    """A use of a rule; `grammar.py` replaces it by the rule's texts."""

    rule: str
    size = 1

    def build(self, network: Network, start: int) -> int:
        raise NotImplementedError


class Token(NamedTuple):
    kind: str
    text: str
    at: int


def read_grammar(text: str) -> Mapping[str, FormPart]:
    """The rules by name, `root` among them; each name that they use is a rule.

    Raises: BadInput that names the line with an error.
    """
    return _Reader(text).rules()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0
        self._used: dict[str, int] = {}  # names, and where

    def rules(self) -> Mapping[str, FormPart]:
        rules: dict[str, FormPart] = {}
        while self._token.kind != "end":
            kind, name, at = self._take()
            if kind != "rule":
                raise self._error("expected a rule", at)
            if name in rules:
                raise self._error(f"a second rule {name}", at)
            rules[name] = self._alternatives(0)
            if self._token.kind == "sign":
                raise self._error(f"unexpected {self._token.text}", self._token.at)
        for name, at in self._used.items():
            if name not in rules:
                raise self._error(f"no rule {name}", at)
        if ROOT not in rules:
            raise BadInput(f"the grammar has no rule {ROOT}; {ACCEPTED}", "grammar")
        return rules

    def _split(self) -> list[Token]:
        tokens, at = [], 0
        while at < len(self._text):
            found = TOKENS.match(self._text, at)
            if found is None:
                raise self._error(f"unexpected {self._text[at]!r}", at)
            kind = str(found.lastgroup)
            if kind != "skip":
                tokens.append(Token(kind, found[kind], at))
            at = found.end()
        return [*tokens, Token("end", "", at)]

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _takes(self, sign: str) -> bool:
        found = self._token.kind == "sign" and self._token.text == sign
        self._next += found
        return found

    def _alternatives(self, nesting: int) -> FormPart:
        ways = [self._sequence(nesting)]
        while self._takes("|"):
            ways.append(self._sequence(nesting))
        return either(ways)

    def _sequence(self, nesting: int) -> FormPart:
        parts: list[FormPart] = []
        while self._token.kind in {"name", "text", "set"} or (self._token.kind == "sign" and self._token.text in "(."):
            parts.append(self._repeated(self._atom(nesting)))
        return parts[0] if len(parts) == 1 else JoinedParts(tuple(parts))

    def _atom(self, nesting: int) -> FormPart:
        kind, text, at = self._take()
        if kind == "name":
            self._used.setdefault(text, at)
            return Reference(text)
        if kind == "text":
            return Literal("".join(character for character, _ in self._characters(text, at)))
        if kind == "set":
            return self._character_set(text, at)
        if text == ".":
            return Characters(ALL)
        if nesting == MAX_NESTING:
            raise self._error(f"more than {MAX_NESTING} groups within each other", at)
        inner = self._alternatives(nesting + 1)
        if not self._takes(")"):
            raise self._error("a ( without its )", at)
        return inner

    def _repeated(self, part: FormPart) -> FormPart:
        signs = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        while (self._token.kind == "sign" and self._token.text in signs) or self._token.kind == "times":
            kind, text, at = self._take()
            if kind == "sign":
                least, most = signs[text]
            else:
                first, comma, last = "".join(text.split()).partition(",")
                if len(text) > MAX_TIMES_LENGTH:
                    raise self._error(f"a range up to {MAX_REPEATS} has fewer digits", at)
                least, most = int(first), int(last) if last else None if comma else int(first)
            if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
                raise self._error(f"{{{text}}} must be a range up to {MAX_REPEATS}", at)
            part = RepeatedPart(part, least, most)
        return part

    def _character_set(self, text: str, at: int) -> FormPart:
        """A character of a set such as [a-z_]."""
        inverted = text.startswith("^")
        found, codes = self._characters(text[inverted:], at)[::-1], list[Range]()
        while found:
            first, _ = found.pop()
            last = first
            if len(found) > 1 and found[-1] == ("-", False):
                found.pop()
                last, _ = found.pop()
            if last < first:
                raise self._error(f"the range {first}-{last} is empty", at)
            codes.append((ord(first), ord(last)))
        if not codes and not inverted:
            raise self._error("an empty set of characters", at)
        return Characters(without(ALL, codes) if inverted else tuple(codes))

    def _characters(self, text: str, at: int) -> list[tuple[str, bool]]:
        """Each character of a quoted text, and whether it was escaped."""
        found = []
        for two, four, eight, escaped, plain in CHARACTERS.findall(text):
            code = int(two or four or eight or "0", 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000 or (escaped and escaped not in ESCAPES):
                raise self._error(f"an invalid escape in {text!r}", at)
            character = plain or ESCAPES.get(escaped) or chr(code)
            found.append((character, not plain))
        return found

    def _error(self, reason: str, at: int) -> BadInput:
        line = self._text.count("\n", 0, at) + 1
        return BadInput(f"line {line} of the grammar: {reason}; {ACCEPTED}", "grammar")
