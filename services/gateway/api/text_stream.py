"""The text of a stream and its tokens' log-probabilities: the committed prefix, decoded piece by piece.

Tokens are unmasked in any order; text is released up to the first mask. A later token can still change an incomplete
character and a possible beginning of a stop string, so these are held back. The pieces join to the outcome's text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.gateway.errors import ApiError
from shared.arrays import Float32, Int32, unpack_float32, unpack_int32
from shared.messages.requests import Outcome, Request
from shared.pinned import protected_tokens
from shared.text import TextModel, first_stop, num_tokens_of
from shared.tokenizer import Tokenizer
from shared.top_tokens import TopTokenTable

REPLACEMENT = "\ufffd"  # the decoded form of an incomplete character
MASKED = -1

Decode = Callable[[Sequence[int]], str]


class TextChanged(Exception):  # noqa: N818  (named for what happened)
    """The outcome's text does not begin with the released text: the request restarted."""


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

    def finish(self, text: str) -> str:
        """The rest of the outcome's text. Raises: TextChanged if it does not begin with the released text."""
        if not text.startswith(self.text):
            raise TextChanged
        rest = text[len(self.text) :]
        self.text = text
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


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """`text` is empty while a character is incomplete, and its last token has the whole character; so the texts of all
    tokens join to that of the reply, as do their bytes. `offset`: characters of the reply's text before it."""

    text: str
    logprob: float
    own_bytes: bytes
    offset: int = 0
    alternatives: Sequence["TokenLogprob"] = ()  # the most probable tokens, descending


class TokenLogprobs:
    """Receives the tokens of one text in order, and gives each away once."""

    def __init__(self, tokenizer: Tokenizer, alternatives: int = 0) -> None:
        """`alternatives`: number of the most probable tokens at each position."""
        self._decode, self._bytes_of = tokenizer.decode, tokenizer.bytes_of
        self._alternatives = alternatives
        self._context: list[int] = []  # the tokens of the last whole character: some tokenizers decode by neighbours
        self._piece: list[int] = []  # tokens of an incomplete character
        self._offset = 0
        self._waiting: list[TokenLogprob] = []
        self.received = 0  # tokens

    def add(self, tokens: Iterable[int], confidences: Float32, top: TopTokenTable | None = None) -> None:
        """`top`: of the whole output; None: no alternatives."""
        for token, logprob in zip(tokens, logprobs_of(confidences), strict=True):
            alternatives = self._texts_of(top, self.received) if top is not None else ()
            text = self._text_of(token)
            self._waiting.append(TokenLogprob(text, logprob, self._bytes_of(token), self._offset, alternatives))
            self._offset += len(text)
            self.received += 1

    def take(self, length: int) -> list[TokenLogprob]:
        """The tokens that begin within the first `length` characters of the text, without those taken before."""
        count = sum(token.offset < length for token in self._waiting)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def finish(self, outcome: Outcome) -> list[TokenLogprob]:
        """The tokens not taken, up to the end of the outcome's text. Raises: ApiError 500 if they are invalid."""
        try:
            tokens, confidences = _columns(outcome)
            top = _top_of(outcome, self._alternatives) if self._alternatives else None
        except ValueError:
            message = f"the outcome has no valid log-probabilities; fetch its text at /v1/requests/{outcome.request_id}"
            raise ApiError(500, message, code="failed") from None
        self.add(tokens[self.received :], confidences[self.received :], top)
        was_cut = isinstance(outcome.stop_reason, str)  # by a stop string, before some of the tokens
        return self.take(len(outcome.text) if was_cut else self._offset + 1)

    def _texts_of(self, top: TopTokenTable, position: int) -> list[TokenLogprob]:
        if not np.isfinite(top.confidences[position]).all():
            return []
        before, known = len(self._decode(self._context)), [*self._context, *self._piece]
        possible = top.confidences[position] > 0  # the form of a text may allow fewer tokens
        tokens, logprobs = top.tokens[position][possible].tolist(), logprobs_of(top.confidences[position][possible])
        return [
            TokenLogprob(self._decode([*known, token])[before:], logprob, self._bytes_of(token))
            for token, logprob in zip(tokens, logprobs, strict=True)
        ]

    def _text_of(self, token: int) -> str:
        """The characters that this token completes."""
        self._piece.append(token)
        text = self._decode([*self._context, *self._piece])
        if text.endswith(REPLACEMENT):
            return ""
        before = self._decode(self._context)
        self._context, self._piece = self._piece, []
        return text[len(before) :]


def logprobs_of(confidences: Float32) -> list[float]:
    """Natural logarithms, at most 0 and finite."""
    logs: list[float] = np.log(np.clip(confidences, np.finfo(np.float32).tiny, 1).astype(np.float64)).tolist()
    return logs


def _columns(outcome: Outcome) -> tuple[list[int], Float32]:
    """Raises: ValueError if they are not valid."""
    tokens, confidences = unpack_int32(outcome.token_ids).tolist(), unpack_float32(outcome.confidences)
    if not len(tokens) == len(confidences) == outcome.completion_tokens or not np.isfinite(confidences).all():
        raise ValueError("the columns do not fit the text, or a confidence is not finite")
    return tokens, confidences


def _top_of(outcome: Outcome, k: int) -> TopTokenTable:
    """Raises: ValueError if they are not valid."""
    top = TopTokenTable.unknown(outcome.completion_tokens, k)
    if outcome.top_tokens is not None:
        top.write(outcome.top_tokens)
    if not np.isfinite(top.confidences).all():
        raise ValueError("a position has no alternatives")
    return top
