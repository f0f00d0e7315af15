"""Decides which text of a stream is final: the committed prefix, decoded piece by piece.

Tokens are unmasked in any order; text is given out up to the first mask. Held back is what a later token could
still change: an incomplete character, and what may be the beginning of a stop string. So the pieces, joined,
equal the text of the outcome.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from shared.arrays import Int32
from shared.text import first_stop

REPLACEMENT = "\ufffd"  # what an incomplete character decodes to
MASKED = -1

Decode = Callable[[Sequence[int]], str]


class TextChanged(Exception):  # noqa: N818  (named for what happened)
    """The final text does not continue what was given out: the request was served again from the start."""


class TextStream:
    """The text of one streamed request."""

    def __init__(self, decode: Decode, end_ids: Collection[int], stop: Sequence[str], output_tokens: int) -> None:
        self._decode = decode
        self._end_ids = end_ids
        self._stop = stop
        self._output = np.full(output_tokens, MASKED, dtype=np.int32)
        self._frontier = 0  # first position not yet read
        self._ended = False  # whether the end of the text has been read
        self._end_read = False  # whether that was the model's own end token
        self._context: list[int] = []  # tokens of the piece before, for tokenizers that join words by neighbours
        self._piece: list[int] = []  # tokens read whose text is not complete
        self._pending = ""  # decoded, held back
        self.text = ""  # given out

    @property
    def tokens_read(self) -> int:
        """Tokens of the committed text so far, without the one that ends it."""
        return self._frontier - self._end_read

    def add(self, positions: Int32, tokens: Int32) -> str:
        """Take tokens unmasked by a step. Returns: the text that has become final, often empty.

        Positions count from the start of the output; one that is already known keeps its first token.
        """
        fresh = self._output[positions] == MASKED
        self._output[positions[fresh]] = tokens[fresh]
        self._read_prefix()
        return self._release()

    def finish(self, text: str) -> str:
        """What is left of the outcome's text. Raises: TextChanged if that text is another one."""
        if not text.startswith(self.text):
            raise TextChanged
        rest = text[len(self.text) :]
        self.text = text
        return rest

    def _read_prefix(self) -> None:
        while not self._ended and self._frontier < len(self._output) and self._output[self._frontier] != MASKED:
            token = int(self._output[self._frontier])
            self._ended = self._end_read = token in self._end_ids
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
        """Give out the pending text before any stop string and before what may become one."""
        cut = first_stop(self._pending, self._stop)
        if cut is not None:
            self._ended = True
        safe = min(len(self._pending) if cut is None else cut, _possible_stop(self._pending, self._stop))
        released, self._pending = self._pending[:safe], self._pending[safe:]
        self.text += released
        return released


def _possible_stop(text: str, stop: Sequence[str]) -> int:
    """Where the longest end of `text` begins that is the beginning of a stop string; its length if none is."""
    longest = max((len(mark) for mark in stop), default=1) - 1
    starts = range(max(0, len(text) - longest), len(text))
    return next((start for start in starts if any(mark.startswith(text[start:]) for mark in stop)), len(text))
