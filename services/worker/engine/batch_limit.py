"""The most tokens of one iteration: fewer after an out-of-memory error, more again after iterations that ran.

Memory may be short for a while only, such as when another program uses the device, so the limit rises again. Each rise
may fail once more, so the errors in a row double the number of iterations before the next one.
"""

MIN_ITERATIONS, MAX_ITERATIONS = 64, 4096  # between two rises
RISES = 8  # from 0 to the maximum


class BatchLimit:
    """`tokens` is the current limit, from 1 to `max_tokens`."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.tokens = max_tokens
        self._iterations = 0  # since the last change
        self._needed = MIN_ITERATIONS
        self._holds = True  # whether the maximum has held since the last error

    def exceeded(self, tokens: int) -> None:
        """A batch of this many tokens did not fit in the memory."""
        if not self._holds:
            self._needed = min(2 * self._needed, MAX_ITERATIONS)
        self._holds = False
        self.tokens = max(1, min(self.tokens, tokens // 2))
        self._iterations = 0

    def ran(self) -> None:
        """A batch ran."""
        if self._holds:
            return
        self._iterations += 1
        if self._iterations < self._needed:
            return
        self._iterations = 0
        if self.tokens == self.max_tokens:
            self._holds, self._needed = True, MIN_ITERATIONS
        self.tokens = min(self.max_tokens, self.tokens + max(1, self.max_tokens // RISES))
