"""`dilaserve up` in its own process, as a user runs it."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from dilaserve.stack.ports import free_ports
from dilaserve.stack.process import dies_with_parent
from tests.support.services import ROOT

START_S = 90.0  # time limit for the stack to be ready
STOP_S = 60.0


def dilaserve(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a `dilaserve` command to its end."""
    command = [sys.executable, "-m", "dilaserve", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=STOP_S, check=False)


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack that is ready."""

    process: subprocess.Popen[bytes]
    port: int
    data_dir: Path
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def complete(self, prompt: str) -> httpx.Response:
        """A greedy completion of one block."""
        body = {"prompt": prompt, "max_tokens": 32, "slo_ms": 60_000}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=START_S)

    def instances(self) -> set[str]:
        """The ids of the instances that the gateway knows."""
        nodes = httpx.get(f"{self.url}/cluster").raise_for_status().json()["nodes"]
        return {instance["id"] for node in nodes for instance in node["instances"]}

    def children(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def programs(self, name: str) -> list[psutil.Process]:
        """The children that run the program `name`, or `python -m <name>`."""
        return [child for child in psutil.Process(self.process.pid).children() if _runs(child, name)]

    def program(self, name: str) -> psutil.Process:
        """The first of `programs`."""
        return self.programs(name)[0]

    def stop(self) -> int:
        """Send SIGTERM. Returns: the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_S)


def _violations(data_dir: Path) -> list[str]:
    """The log lines of the embedded NATS server about a user without the permission that it needs."""
    log = data_dir / "nats" / "server.log"
    return [line for line in log.read_text().splitlines() if "Violation" in line] if log.exists() else []


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and wait until its children, too, have ended and released the data directory."""
    children = [] if process.poll() is not None else psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    psutil.wait_procs(children, timeout=STOP_S)


def _runs(process: psutil.Process, name: str) -> bool:
    try:
        return process.name() == name or name in process.cmdline()
    except psutil.NoSuchProcess:  # ended just now
        return False


@contextmanager
def new_data_dir() -> Iterator[Path]:
    """A directory outside pytest's own, which other users cannot enter; under root, Postgres runs as another user."""
    with tempfile.TemporaryDirectory(prefix="dilaserve-") as directory:
        yield Path(directory) / "data"


@contextmanager
def running_stack(model: Path, data_dir: Path, *options: object, directory: Path = ROOT) -> Iterator[Stack]:
    """Run `dilaserve up` with these options in `directory`. Raises: RuntimeError with its output if it is not ready in
    START_S."""
    port, log = free_ports(1)[0], data_dir.with_suffix(".log")
    arguments = ["--model", model, "--data-dir", data_dir, "--port", port, *options]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dilaserve", "up", *map(str, arguments)],
            cwd=directory,
            stdout=out,
            stderr=out,
            preexec_fn=dies_with_parent(signal.SIGKILL),  # noqa: PLW1509  (also if the tests are killed)
        )
    try:
        deadline_s = time.monotonic() + START_S
        while b"is ready" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the stack is not ready:\n{log.read_text()}")
            time.sleep(0.05)
        yield Stack(process, port, data_dir, log)
        assert _violations(data_dir) == [], "a user of the bus lacks a subject"
    finally:
        _end(process)
        log.unlink()
