"""Child processes: start, output, and end with their parent."""

import asyncio
import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run, and how to stop it."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)  # added to this process's environment
    user: str | None = None  # None: this process's user
    descriptors: tuple[int, ...] = ()  # open files of this process that the program inherits
    log: Path | None = None  # file of its output; None: standard error, each line with the name
    stop_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGKILL  # sent by the kernel if this process dies


async def spawn(program: Program) -> asyncio.subprocess.Process:
    """Start the program in its own session, so that the terminal's Ctrl-C reaches only the parent.

    Its output goes to a pipe, or is appended to `program.log`. Raises: OSError if it cannot be started.
    """
    output = program.log.open("ab") if program.log else None
    try:
        return await asyncio.create_subprocess_exec(
            *program.command,
            env={**os.environ, **program.environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output or asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=sys.maxsize,  # lines may have any length
            pass_fds=program.descriptors,
            start_new_session=True,
            preexec_fn=dies_with_parent(program.orphan_signal),
            user=program.user,
            group=pwd.getpwnam(program.user).pw_gid if program.user else None,
            extra_groups=[] if program.user else None,
        )
    finally:
        if output:
            output.close()


def kill(process: asyncio.subprocess.Process) -> None:
    """End the process and its children at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def dies_with_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    """A function for the child, between fork and exec. Linux only: on other systems an orphan keeps running."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def set_up() -> None:
        prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return set_up
