"""The log-probabilities of a text's tokens, each with its part of the text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.gateway.api.text_stream import REPLACEMENT
from services.gateway.errors import ApiError
from shared.arrays import Float32, unpack_float32, unpack_int32
from shared.messages.requests import Outcome
from shared.tokenizer import Tokenizer
from shared.top_tokens import TopTokenTable


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
