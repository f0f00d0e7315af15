"""The line with which a benchmark's report names the machine and the command."""

import os
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path


def environment_header() -> str:
    """The processor, its cores, torch's version, the load and the command line, in one line."""
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    command = shlex.join(["python", *sys.orig_argv[1:]])
    return f"{model}, {os.cpu_count()} cores, torch {version('torch')}, load {os.getloadavg()[0]:.1f}: {command}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
