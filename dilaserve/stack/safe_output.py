"""Output that survives its reader: a closed terminal, a pipe to `head`, a full disk."""

import errno
import io
import os
from typing import TextIO

READER_GONE = (errno.EPIPE, errno.EIO)  # the reader is gone; EIO: a closed terminal


class BrokenPipeSafeStream(io.TextIOBase):
    """Writes to a stream unbuffered, and ignores failures."""

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` is None if it was closed before the start."""
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open for the whole run)

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            if error.errno in READER_GONE:
                self._redirect_to_null()
        return len(text)

    def _redirect_to_null(self) -> None:
        """Redirect the stream, so that its buffer does not fail at exit."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
