"""Run as a program of its own by `sandbox`: gives up what it could do harm with, then runs what it was handed.

Standard input: JSON with `program` (text), `mark` (text), `memory` (bytes) and `cpu_s`. Standard output: a line of JSON
that tells whether the network is cut off, and whether the user is not root; then the mark, if the program ended.
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
    told = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.write(told, json.dumps(isolation).encode() + b"\n")
    exec(task["program"], {"__name__": "__main__"})  # noqa: S102  (that is what the limits are for)
    os.write(told, task["mark"].encode())


def cut_network() -> bool:
    """A network of its own, with nothing in it; who may not have one may as the root of a user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    return any(libc.unshare(flags) == 0 for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET))


def leave_root() -> bool:
    """Become nobody, where nobody may read Python's own library."""
    if os.geteuid() == 0 and all_may_read(Path(os.__file__).resolve()):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return os.geteuid() != 0


def all_may_read(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IROTH) and all(d.stat().st_mode & stat.S_IXOTH for d in path.parents)


def limit(memory: int, cpu_s: int) -> None:
    """Memory in bytes, processor time in seconds, no further processes, no large files, no core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
