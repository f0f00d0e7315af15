"""The embedded cluster for an experiment: started by the command that users type, stopped at the end."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from dilaserve.stack.ports import free_port

READY_S = 180.0
STOP_S = 60.0


@contextmanager
def live_cluster(*options: object) -> Iterator[str]:
    """Run `dilaserve up` with these options; its address. Raises: RuntimeError with its log if it does not start."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="dilaserve-") as directory:
        log = Path(directory) / "log"
        command = [sys.executable, "-m", "dilaserve", "up", "--port", port, "--data-dir", f"{directory}/data", *options]
        with log.open("wb") as out:
            process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out)
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(process, url, log)
            yield url
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=STOP_S)
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while not _is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the cluster did not start:\n{log.read_text()}")
        time.sleep(0.2)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").is_success
    except httpx.TransportError:
        return False
