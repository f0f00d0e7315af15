"""A service as a process of its own, for an experiment."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from shared.settings import to_environ


@contextmanager
def service(name: str, **settings: object) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a service with these settings during the body. Yields: its process and its log."""
    environ = {**os.environ, **to_environ(settings)}
    with tempfile.NamedTemporaryFile(prefix=f"dilaserve-{name}-") as log:
        process = subprocess.Popen([sys.executable, "-m", f"services.{name}"], env=environ, stdout=log, stderr=log)
        try:
            yield process, Path(log.name)
        finally:
            process.kill()
            process.wait()


def cpu_time_s(process: subprocess.Popen[bytes]) -> float:
    """The CPU time of a process and its children, without those that have ended."""
    parent = psutil.Process(process.pid)
    times = [each.cpu_times() for each in (parent, *parent.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))
