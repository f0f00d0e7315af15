"""The new parts of a streamed text that may contain tool calls."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from services.gateway.api.tool_calls.call_text import Call, ReadText


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

    def add(self, piece: str, *, is_last: bool = False) -> list[str | NewPart]:
        """The new texts and the new parts of calls, in order."""
        self._text += piece
        before, self._sent = self._sent, self._read(self._text, is_last)
        new, calls = list[str | NewPart](), 0
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
