"""Finds calls of tools in a text that may be incomplete, such as {"name": NAME, "arguments": {...}} after a mark.

The texts and calls in a longer text begin with those in a shorter one, so a stream sends only the difference.
Text that can still become the beginning of a call is withheld.
"""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest

Arguments = tuple[str, int]  # the JSON object of a call's arguments, and its end; if it is incomplete, that of the text
SPACE = r"\s*"
PIECES = (
    *(SPACE, r"\{", SPACE, *'"name"', SPACE, ":", SPACE, '"', r"([\w.-]+)", '"', SPACE, ",", SPACE),
    *(*'"arguments"', SPACE, ":", SPACE, r"\{"),
)
DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}
IN_ARGUMENTS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\]<]', re.DOTALL)  # `<` is no JSON outside of a string


@dataclass(frozen=True, slots=True)
class Call:
    """A call; its arguments are JSON as the model wrote it, and may be incomplete."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ReadText:
    """The calls in a text and the texts around them, in order. No text follows another one."""

    parts: tuple[str | Call, ...] = ()
    thought: str = ""  # before them

    @property
    def content(self) -> str:
        """The text without its calls."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    def with_one_call(self) -> "ReadText":
        """Without the calls after the first one."""
        first = next((at for at, part in enumerate(self.parts) if isinstance(part, Call)), len(self.parts))
        rest = ReadText(self.parts[first + 1 :]).content
        return ReadText((*self.parts[: first + 1], rest) if rest else self.parts[: first + 1])


class CallReader:
    def __init__(
        self,
        opening: str,
        closing: str,
        *,
        anywhere: bool,
        pieces: Sequence[str] = PIECES,
        arguments: Callable[[str, int], Arguments] | None = None,
    ) -> None:
        """`opening`, `closing`: the marks around each call. `anywhere`: calls may follow text; otherwise they are at
        the text's beginning only. `pieces`: the patterns of a call's characters up to the first of its arguments, with
        the name as a group. `arguments` reads the arguments that begin at an index; None: they are JSON."""
        self._arguments = arguments or _json_arguments
        pieces = [*map(re.escape, opening), *pieces]
        header = re.compile("".join(pieces[:-1]) + f"(?={pieces[-1]})")
        self._beginning = re.compile(_beginnings(pieces) + r"\Z")
        self._end = re.compile(SPACE + r"\}?" + SPACE + f"(?:{re.escape(closing)})?" + SPACE)
        self._end_beginning = re.compile(_beginnings(list(map(re.escape, closing))) + r"\Z")
        self._find = header.search if anywhere else header.match
        self._mark = opening[:1] if anywhere else ""  # with which a call begins that follows text

    def read(self, text: str, *, is_whole: bool) -> ReadText:
        """`is_whole`: nothing follows."""
        parts, at = list[str | Call](), 0
        while found := self._find(text, at):
            written, end = self._arguments(text, found.end())
            parts += [text[at : found.start()], Call(found[1], written)]
            after = self._end.match(text, end)
            assert after is not None  # it matches the empty text
            at = after.end()
        parts.append(text[at:] if is_whole else text[at : self._withheld_from(text, at, is_after_call=bool(parts))])
        kept = tuple(part for part in parts if isinstance(part, Call) or part.strip())
        return ReadText(kept or ((text,) if is_whole and text else ()))

    def _withheld_from(self, text: str, at: int, *, is_after_call: bool) -> int:
        """Where the text from `at` on may become the beginning of a call, or the end of the call before it."""
        if is_after_call and self._end_beginning.match(text, at):
            return at
        start = text.rfind(self._mark, at) if self._mark else at
        return start if start >= 0 and self._beginning.match(text, start) else len(text)


def _json_arguments(text: str, start: int) -> Arguments:
    depth, end = 0, len(text)
    for found in IN_ARGUMENTS.finditer(text, start):
        if found[0] == "<":
            end = found.start()
            break
        depth += DEPTHS.get(found[0], 0)
        if not depth:
            end = found.end()
            break
    return text[start:end], end


def _beginnings(pieces: Sequence[str]) -> str:
    """The pattern of every beginning of the pieces."""
    return "".join(f"(?:{piece}" for piece in pieces) + ")?" * len(pieces)


_NAME = r'[^\s{}\[\],:<"][^{}\[\],:<"]*'  # a key, a number or a constant
_STRING = r'<\|"\|>(?P<text>(?s:.*?))(?:(?P<closing><\|"\|>)|(?:<(?:\|(?:"\|?)?)?)?\Z)'
_CUT = rf'(?P<cut>{_NAME}\Z|<(?:\|(?:"\|?)?)?\Z|"(?:[^"\\]|\\.)*\\?\Z)'  # may continue in other ways
_TOKEN = re.compile(rf'{_STRING}|{_CUT}|(?P<json>"(?:[^"\\]|\\.)*"|[{{}}\[\],:\s])|(?P<name>{_NAME})(?P<is_key>:)?')


def gemma_arguments(text: str, start: int) -> Arguments:
    """The object that begins at `start`, as JSON. Of an incomplete one, the JSON begins that of the whole one.

    Gemma 4 writes {city:<|"|>Rome<|"|>,days:[1,2]}: keys have no quotes, and texts are between marks, without escapes.
    """
    written, depth, at = list[str](), 0, start
    while found := _TOKEN.match(text, at):
        at = found.end()
        if found["text"] is not None:
            quoted = json.dumps(found["text"], ensure_ascii=False)
            written.append(quoted if found["closing"] else quoted[:-1])
        elif found["json"]:
            written.append(found["json"])
            depth += DEPTHS.get(found["json"], 0)
            if not depth:
                break
        elif found["name"]:
            name = found["name"].rstrip()
            written.append(f"{json.dumps(name, ensure_ascii=False)}:" if found["is_key"] else _scalar(name))
    return "".join(written), at


def _scalar(word: str) -> str:
    """A number or a constant as JSON has it; another word is a text."""
    if word == "None":
        return "null"
    with suppress(ValueError):
        json.loads(word)
        return word
    return json.dumps(word, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class NewThought:
    """A new part of the thought."""

    text: str


@dataclass(frozen=True, slots=True)
class NewPart:
    """A new part of a tool call. `name`: of the tool, in the first part of the call; None in later parts."""

    index: int
    name: str | None
    arguments: str


class CallStream:
    """The text of one choice, piece by piece."""

    def __init__(self, read: Callable[[str, bool], ReadText]) -> None:
        """`read` parses the text so far; its second argument is whether the text is complete."""
        self._read, self._text, self._sent = read, "", ReadText()

    @property
    def has_calls(self) -> bool:
        """Whether a call has been sent."""
        return bool(self._sent.calls)

    def add(self, piece: str, *, is_last: bool = False) -> list[NewThought | str | NewPart]:
        """The new thoughts, texts and parts of calls, in order."""
        self._text += piece
        before, self._sent = self._sent, self._read(self._text, is_last)
        thought = self._sent.thought[len(before.thought) :]
        new, calls = list[NewThought | str | NewPart]([NewThought(thought)] if thought else []), 0
        for part, known in zip_longest(self._sent.parts, before.parts):
            if isinstance(part, str):
                rest = part[len(known) if isinstance(known, str) else 0 :]
                new += [rest] if rest else []
                continue
            sent = known.arguments if isinstance(known, Call) else None
            rest = part.arguments[len(sent or "") :]
            new += [NewPart(calls, part.name if sent is None else None, rest)] if rest or sent is None else []
            calls += 1
        return new
