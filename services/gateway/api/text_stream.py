"""Determines the final text of a stream: the committed prefix, decoded piece by piece.

Tokens are unmasked in any order; text is released up to the first mask. A later token can still change an incomplete
character and a possible beginning of a stop string, so these are held back. The pieces join to the outcome's text.
"""

from collections.abc import Callable, Sequence

import numpy as np

from services.gateway.errors import ApiError
from shared.arrays import Int32, unpack_int32
from shared.messages.requests import Outcome, Request
from shared.pinned import protected_tokens
from shared.text import TextModel, first_stop, num_tokens_of

REPLACEMENT = "\ufffd"  # the decoded form of an incomplete character
MASKED = -1

Decode = Callable[[Sequence[int]], str]


class TextStream:
    def __init__(self, model: TextModel, request: Request) -> None:
        self._decode = model.decode
        self._end_ids = model.end_ids_of(request)
        self._stop = request.stop
        pinned = unpack_int32(request.pinned)
        self._output = np.full(request.output_tokens, MASKED, dtype=np.int32)
        self._output[: len(pinned)] = pinned
        self._free = self._output == MASKED
        self._protected = protected_tokens(request, self._end_ids)  # the first tokens, which do not end the text
        self._limit = min(request.output_tokens, request.max_tokens or request.output_tokens)
        self._frontier = 0  # first position not read
        self._ended = False  # whether the text has ended, by an end token or a stop string
        self._end_read = False  # whether an end token was read
        self._context: list[int] = []  # tokens of the previous piece: some tokenizers decode by neighbours
        self._piece: list[int] = []  # tokens read and not yet decoded
        self._pending = ""  # decoded text, held back
        self.text = ""  # released text

    @property
    def tokens_read(self) -> int:
        """Tokens of the committed prefix, without the pinned ones and the end token."""
        return int(np.count_nonzero(self._free[: self._frontier - self._end_read]))

    def tokens_from(self, first: int) -> list[int]:
        """The tokens of the committed prefix from position `first` on, without the end token."""
        tokens: list[int] = self._output[first : self._frontier - self._end_read].tolist()
        return tokens

    def add(self, positions: Int32, tokens: Int32) -> str:
        """Add tokens unmasked by a step. Returns: the text that became final, often empty.

        Positions count from the start of the output; a known position keeps its first token.
        """
        masked = self._output[positions] == MASKED
        self._output[positions[masked]] = tokens[masked]
        self._read_prefix()
        return self._release()

    def finish(self, outcome: Outcome) -> str:
        """The rest of the outcome's text. Raises: ApiError 500 if it does not begin with the released text."""
        if not outcome.text.startswith(self.text):
            message = f"the request restarted with another text; fetch it at /v1/requests/{outcome.request_id}"
            raise ApiError(500, message, code="text_changed")
        rest = outcome.text[len(self.text) :]
        self.text = outcome.text
        return rest

    def _read_prefix(self) -> None:
        while not self._ended and self._frontier < self._limit and self._output[self._frontier] != MASKED:
            token = int(self._output[self._frontier])
            self._ended = self._end_read = token in self._end_ids and self._frontier >= self._protected
            if not self._ended:
                self._piece.append(token)
            self._frontier += 1
        if not self._piece:
            return
        before = self._decode(self._context)
        text = self._decode([*self._context, *self._piece])
        if not text.endswith(REPLACEMENT):
            self._pending += text[len(before) :]
            self._context, self._piece = self._piece, []

    def _release(self) -> str:
        """Release the pending text before a stop string or a possible beginning of one."""
        end = _possible_stop(self._pending, self._stop)
        if (found := first_stop(self._pending, self._stop)) is not None:
            cut, mark = found
            text, tokens = self.text + self._pending[:cut] + mark, self.tokens_from(0)
            self._ended, self._end_read, end = True, False, min(cut, end)
            self._frontier = num_tokens_of(text, tokens, self._decode)
        released = self._pending[:end]
        self._pending = self._pending[end:] if found is None else ""  # nothing follows a stop text
        self.text += released
        return released


def _possible_stop(text: str, stop: Sequence[str]) -> int:
    """The start of the longest suffix of `text` that begins a stop string; len(text) if there is none."""
    max_length = max((len(string) for string in stop), default=1) - 1
    starts = range(max(0, len(text) - max_length), len(text))
    return next((start for start in starts if any(string.startswith(text[start:]) for string in stop)), len(text))
