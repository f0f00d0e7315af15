"""The outputs of all requests in flat arrays, so that one long output costs its own memory only."""

from collections import defaultdict

import numpy as np

from shared.arrays import Float32, Int32

MASKED = -1  # a masked position of the output
MIN_ROOM_TOKENS = 64


class OutputBuffer:
    """Gives each output a part of the arrays. The length of a part is a power of two, so that it fits later outputs."""

    def __init__(self) -> None:
        self.tokens: Int32 = np.full(1 << 14, MASKED, dtype=np.int32)  # [tokens]; it is replaced when it grows
        self.confidences: Float32 = np.zeros(len(self.tokens), dtype=np.float32)  # of the tokens; 0: none, or not known
        self._free: dict[int, list[int]] = defaultdict(list)  # starts of unused parts, by length
        self._end = 0  # of the parts in use or free

    def take(self, output_length: int) -> int:
        """Reserve a part in which all is masked. Returns: its start."""
        length = _room(output_length)
        if self._free[length]:
            start = self._free[length].pop()
            self.tokens[start : start + length] = MASKED
            self.confidences[start : start + length] = 0
            return start
        start, self._end = self._end, self._end + length
        while self._end > len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.full_like(self.tokens, MASKED)])
            self.confidences = np.concatenate([self.confidences, np.zeros_like(self.confidences)])
        return start

    def give_back(self, start: int, output_length: int) -> None:
        """Free the part of an output."""
        self._free[_room(output_length)].append(start)


def _room(output_length: int) -> int:
    return max(MIN_ROOM_TOKENS, 1 << (output_length - 1).bit_length())
