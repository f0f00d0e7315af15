"""Runs a program that a model wrote, in a child process with limits on time and memory and without a network.

Linux only. Under root the child becomes the user nobody, if that user can read Python's library. The child can read
files: run the programs of an untrusted model in a container.
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
WALL_S = 30.0  # generous, as the machine may be busy
MEMORY_BYTES = 512 << 20  # address space


class Isolation(msgspec.Struct, frozen=True):
    """The isolation of a program, besides its limits."""

    no_network: bool
    no_root: bool


def passes(program: str, tests: str) -> bool:
    """Whether the program and its tests complete. Raises: DilaserveError if no program can run."""
    return _run(f"{program}\n{tests}\n")[1]


def isolation() -> Isolation:
    """The isolation of programs on this machine. Raises: DilaserveError if no program can run."""
    found = _run("")[0]
    if found is None:
        raise DilaserveError(f"programs cannot run here: an empty one took more than {WALL_S:g} s")
    return found


def _run(program: str) -> tuple[Isolation | None, bool]:
    """The isolation, None after a timeout, and whether the program completed."""
    mark = secrets.token_hex(16)  # distinguishes completion from an early exit
    task = msgspec.json.encode({"program": program, "mark": mark, "memory": MEMORY_BYTES, "cpu_s": CPU_S})
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
            output, errors = child.communicate(task, timeout=WALL_S)
        except subprocess.TimeoutExpired:
            return None, False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    first_line, _, rest = output.partition(b"\n")
    if not first_line:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2] or f"exit status {child.returncode}"
        raise DilaserveError(f"programs cannot run here: {reason}")
    return msgspec.json.decode(first_line, type=Isolation), rest == mark.encode()
