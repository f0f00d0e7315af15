"""The child process of `sandbox`: drops its privileges, then runs the given program.

Standard input: JSON with `program` (text), `mark` (text), `memory` (bytes) and `cpu_s`. Standard output: one line of
JSON, `no_network` and `no_root`; then the mark, if the program completed.
"""

import ctypes
import json
import os
import resource
import stat
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NOBODY = 65534
FILE_BYTES = 1 << 20


def main() -> None:
    task = json.load(sys.stdin)
    isolation = {"no_network": cut_network(), "no_root": leave_root()}
    limit(task["memory"], task["cpu_s"])
    output = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.write(output, json.dumps(isolation).encode() + b"\n")
    exec(task["program"], {"__name__": "__main__"})  # noqa: S102  (with the limits above)
    os.write(output, task["mark"].encode())


def cut_network() -> bool:
    """Enter an empty network namespace, without root inside a new user namespace. Returns: whether it succeeded."""
    libc = ctypes.CDLL(None, use_errno=True)
    return any(libc.unshare(flags) == 0 for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET))


def leave_root() -> bool:
    """Become nobody, if nobody can read Python's library. Returns: whether the user is not root."""
    if os.geteuid() == 0 and is_world_readable(Path(os.__file__).resolve()):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return os.geteuid() != 0


def is_world_readable(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IROTH) and all(d.stat().st_mode & stat.S_IXOTH for d in path.parents)


def limit(memory: int, cpu_s: int) -> None:
    """Limit memory (bytes) and CPU time (seconds); forbid processes, large files and core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
