"""A program in the background of an experiment."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import NamedTemporaryFile

STOP_S = 60.0


@contextmanager
def background_program(
    command: Sequence[object], is_ready: Callable[[], bool], limit_s: float, *, new_session: bool = False
) -> Iterator[None]:
    """Run a program during the body, once it is ready. Raises: RuntimeError with its output if it does not start.

    In a new session it does not receive the terminal's Ctrl-C.
    """
    with NamedTemporaryFile(prefix="dilaserve-log-") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, start_new_session=new_session)
        try:
            deadline_s = time.monotonic() + limit_s
            while not is_ready():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise RuntimeError(log.read().decode(errors="replace").strip())
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
