"""A real NATS server for tests: its own process, a free port, a temporary store."""

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest

from shared.bus.client import Bus, _ConnectionLog
from shared.tasks import cancel
from tests.support.waiting import reached

START_S = 20.0  # time limit for the server to listen
NATS_SERVER = Path(sys.executable).parent / "nats-server"
_numbers = itertools.count()


class NatsServer:
    """A server that a test can stop and restart on the same port with the same store."""

    def __init__(self, directory: Path, max_file_store: str = "1PB", more: str = "") -> None:
        """`max_file_store`: the bytes that limits of streams on disk may reserve, as NATS writes them. `more`: further
        sections of the configuration."""
        self._directory = directory
        self._config = directory / "nats.conf"
        self._max_file_store = max_file_store
        self._more = more
        self._port = -1  # the server picks a free one at its first start
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, and return when the server listens. Raises: RuntimeError with its log if it does not."""
        log = self._directory / "nats.log"
        self._write_config()
        options = ["-c", str(self._config), "-a", "127.0.0.1", "-p", str(self._port), "-l", str(log)]
        self._process = subprocess.Popen([NATS_SERVER, *options, "--ports_file_dir", str(self._directory)])
        ports = self._directory / f"nats-server_{self._process.pid}.ports"
        deadline_s = time.monotonic() + START_S
        while not (ports.exists() and ports.stat().st_size):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise RuntimeError(f"nats-server did not start: {log.read_text() if log.exists() else 'no log'}")
            time.sleep(0.01)
        self._port = int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server runs"
        return self._process.pid

    def reload(self, more: str) -> None:
        """Read the configuration again, with other further sections."""
        self._more = more
        self._write_config()
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def _write_config(self) -> None:
        store = json.dumps(str(self._directory / "store"))
        limits = f"max_file_store: {self._max_file_store}, max_memory_store: 1PB"
        self._config.write_text(f"jetstream {{ store_dir: {store}, {limits} }}\n{self._more}")

    def stop(self, *, kill: bool = False) -> None:
        """End the process with SIGTERM, or with SIGKILL like a crash."""
        if self._process is None:
            return
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait(timeout=START_S)
        self._process = None


@contextmanager
def started_server(directory: Path, max_file_store: str = "1PB", more: str = "") -> Iterator[NatsServer]:
    """A server that runs until the end of the body, if the body does not stop it."""
    server = NatsServer(directory, max_file_store, more)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def full_files(pid: int, max_bytes: int) -> Iterator[None]:
    """Let a process write no file beyond `max_bytes` during the body, as on a full disk."""
    limits = psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE)
    psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (max_bytes, limits[1]))
    try:
        yield
    finally:
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, limits)


async def fail_to_connect(url: str, cell: str, monkeypatch: pytest.MonkeyPatch, attempts: int = 3) -> None:
    """Connect to a server that refuses it, and stop after some attempts."""
    errors: list[Exception] = []
    log = _ConnectionLog.error

    async def count(connection_log: _ConnectionLog, error: Exception) -> None:
        errors.append(error)
        await log(connection_log, error)

    monkeypatch.setattr(_ConnectionLog, "error", count)
    connecting = asyncio.ensure_future(Bus.connect(url, cell, name="test"))
    await reached(lambda: len(errors) >= attempts)
    await cancel([connecting])


@asynccontextmanager
async def new_cell(server: NatsServer, cell: str = "") -> AsyncIterator[Bus]:
    """A bus connected to its own cell, with streams and buckets set up."""
    connected = await Bus.connect(server.url, cell or f"test{next(_numbers)}", name="test")
    await connected.set_up()
    try:
        yield connected
    finally:
        await connected.close()
