"""The parts of a streamed text with calls of tools that are new."""

from collections.abc import Callable
from dataclasses import dataclass

from services.gateway.api.tool_calls.call_text import ReadText


@dataclass(frozen=True, slots=True)
class NewPart:
    """Of a call; `name` is that of a new call, otherwise None."""

    index: int
    name: str | None
    arguments: str


class CallStream:
    """The text of one choice, piece by piece."""

    def __init__(self, read: Callable[[str, bool], ReadText]) -> None:
        """`read` reads a text, which may be whole."""
        self._read, self._text, self._sent = read, "", ReadText("")

    @property
    def has_calls(self) -> bool:
        """Whether a call has been sent."""
        return bool(self._sent.calls)

    def add(self, piece: str, *, is_last: bool = False) -> tuple[str, list[NewPart]]:
        """The new content, and the new parts of calls."""
        self._text += piece
        before, self._sent = self._sent, self._read(self._text, is_last)
        known = [len(call.arguments) for call in before.calls]
        parts = [
            NewPart(at, None if at < len(known) else call.name, call.arguments[known[at] if at < len(known) else 0 :])
            for at, call in enumerate(self._sent.calls)
        ]
        new = [part for part in parts if part.name is not None or part.arguments]
        return self._sent.content[len(before.content) :], new
