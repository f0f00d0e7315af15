"""A service in its own process, as in production."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shared.settings import to_environ

STOP_S = 20.0
ROOT = Path(__file__).parents[2]
# `datetime.now` does not call `time.time`; as its class is not written in Python, its dictionary is changed directly.
WRONG_CLOCK = """
import ctypes, gc, runpy, time
from datetime import datetime
right = time.time
time.time = lambda: right() + {ahead_s}
gc.get_referents(datetime.__dict__)[0]["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))
runpy.run_module("services.{name}", run_name="__main__")
"""


@contextmanager
def service(
    name: str, settings: Mapping[str, object], log: Path, *, clock_ahead_s: float = 0.0, root: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `services.<name>` with these settings, log to the file `log`, and end it with SIGTERM.

    `clock_ahead_s`: the error of its machine's clock; `root`: the tree with its code.
    """
    command = (
        ["-c", WRONG_CLOCK.format(name=name, ahead_s=clock_ahead_s)] if clock_ahead_s else ["-m", f"services.{name}"]
    )
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, *command], env={**os.environ, **to_environ(settings)}, cwd=root, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM, after STOP_S SIGKILL. Returns: the exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
