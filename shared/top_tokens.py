"""The most probable tokens at each position of an output, with their probabilities at the step that unmasked it."""

from dataclasses import dataclass

import numpy as np

from shared.arrays import Float32, Int32, Int64, pack_float32, pack_int32, unpack_float32, unpack_int32
from shared.messages.requests import TopTokens


@dataclass(frozen=True, slots=True)
class TopTokenTable:
    """Those of a whole output, k per position, the most probable first. A probability is NaN where they are unknown."""

    tokens: Int32  # [O, k]
    confidences: Float32  # [O, k]

    @classmethod
    def unknown(cls, output_length: int, k: int) -> "TopTokenTable":
        shape = output_length, k
        return cls(np.zeros(shape, dtype=np.int32), np.full(shape, np.nan, dtype=np.float32))

    def write(self, message: TopTokens, vocab_size: int = 2**31) -> None:
        """Raises: ValueError if the columns do not fit together, this output or the vocabulary."""
        length, k = self.tokens.shape
        positions, tokens = unpack_int32(message.positions), unpack_int32(message.tokens)
        confidences = unpack_float32(message.confidences)
        if not len(tokens) == len(confidences) == len(positions) * k:
            raise ValueError(f"{len(positions)} positions, {len(tokens)} tokens, {len(confidences)} probabilities")
        if np.count_nonzero(positions.view(np.uint32) >= length):  # a negative one becomes too large
            raise ValueError(f"a position is outside 0..{length - 1}")
        if np.count_nonzero(tokens.view(np.uint32) >= vocab_size):
            raise ValueError(f"a token is outside 0..{vocab_size - 1}")
        if not np.isfinite(confidences).all():
            raise ValueError("a probability is not finite")
        self.tokens[positions] = tokens.reshape(-1, k)
        self.confidences[positions] = confidences.reshape(-1, k)

    def read(self, positions: Int32 | Int64) -> TopTokens:
        """Those of the positions [n] that are known."""
        known = positions[np.isfinite(self.confidences[positions]).all(axis=1)]
        return TopTokens(
            positions=pack_int32(known),
            tokens=pack_int32(self.tokens[known]),
            confidences=pack_float32(self.confidences[known]),
        )
