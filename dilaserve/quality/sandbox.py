"""Runs a program that a model has written: in a child process with limits on time and memory, and without a network.

Linux alone. Under root the child becomes the user nobody, where that user may read Python's library. Files are not
kept from it: programs of a model that is not trusted belong into a container.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from shared.errors import DilaserveError

CHILD = Path(__file__).with_name("sandbox_child.py")
CPU_S = 5
WALL_S = 30.0  # for programs that wait; generous, since the machine may be busy
MEMORY = 512 << 20  # bytes of address space


class Isolation(msgspec.Struct, frozen=True):
    """What a program is kept from besides too much time and memory."""

    no_network: bool
    no_root: bool


def passes(program: str, tests: str) -> bool:
    """Whether the program and then its tests run to their end. Raises: DilaserveError if none can be run."""
    return _run(f"{program}\n{tests}\n")[1]


def isolation() -> Isolation:
    """How programs are kept apart on this machine. Raises: DilaserveError if none can be run."""
    found = _run("")[0]
    if found is None:
        raise DilaserveError(f"programs cannot be run here: an empty one took more than {WALL_S:g} s")
    return found


def _run(program: str) -> tuple[Isolation | None, bool]:
    """How it was kept apart, None where it took too long, and whether it came to its end."""
    mark = secrets.token_hex(16)  # an exit in the middle does not pass for the end
    task = msgspec.json.encode({"program": program, "mark": mark, "memory": MEMORY, "cpu_s": CPU_S})
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(
            [sys.executable, "-I", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env={"LANG": "C.UTF-8"},
            start_new_session=True,
        ) as child,
    ):
        try:
            told, wrong = child.communicate(task, timeout=WALL_S)
        except subprocess.TimeoutExpired:
            return None, False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    kept_apart, _, rest = told.partition(b"\n")
    if not kept_apart:
        why = wrong.decode(errors="replace").strip().rpartition("\n")[2] or f"exit status {child.returncode}"
        raise DilaserveError(f"programs cannot be run here: {why}")
    return msgspec.json.decode(kept_apart, type=Isolation), rest == mark.encode()
