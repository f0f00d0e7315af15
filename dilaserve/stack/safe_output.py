"""Output of a server that outlives its reader: a terminal that is closed, a pipe to `head`, a full disk."""

import errno
import io
import os
from typing import TextIO

GONE = (errno.EPIPE, errno.EIO)  # nobody will read it any more; the latter is what a closed terminal answers


class BrokenPipeSafeStream(io.TextIOBase):
    """Writes to a stream at once, and goes on without a word where that cannot be done."""

    def __init__(self, stream: TextIO | None) -> None:
        """None is Python's word for one that was closed before the start."""
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (for as long as it runs)

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            if error.errno in GONE:
                self._lead_nowhere()
        return len(text)

    def _lead_nowhere(self) -> None:
        """So that what the stream still holds does not fail at the end of the process."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
