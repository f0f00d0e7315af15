"""The cluster that a fault breaks, and the environment, bus and disk that some faults need."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from experiments.fault_load import leading_process, processes_of
from tests.support.nats import NatsServer
from tests.support.tcp_proxy import TcpProxy


@dataclass(frozen=True, slots=True)
class ClusterNeeds:
    """How a fault's cluster differs from the others."""

    options: tuple[str, ...] = ()  # of `dilaserve up`
    environ: Mapping[str, str] = field(default_factory=dict)
    own_bus: bool = False  # whether NATS is a process of the experiment, behind a proxy
    disk_mb: int = 0  # size of that NATS's disk, a tmpfs; 0: a usual one


@dataclass(slots=True)
class FaultTarget:
    """A running cluster."""

    url: str
    nats_url: str
    proxy: TcpProxy  # between the services and `nats`
    nats: NatsServer | None  # with `own_bus`
    nats_directory: Path

    async def leader(self) -> psutil.Process:
        """The scheduler that leads."""
        return await leading_process(self.nats_url)

    def ports_of(self, name: str) -> set[int]:
        """The local ports of a service's connections."""
        return {each.laddr.port for process in processes_of(name) for each in process.net_connections()}

    async def restart_nats(self, meanwhile_damage: Path | None = None) -> None:
        """Kill NATS and start it on the same store, after the damage of a file of it."""
        assert self.nats is not None, "the row has a bus of its own"
        await asyncio.to_thread(self.nats.stop, kill=True)
        if meanwhile_damage is not None:
            flip_bytes(meanwhile_damage)
        await asyncio.to_thread(self.nats.start)


def flip_bytes(path: Path, from_end: int = 1000, count: int = 8) -> None:
    """Invert bytes `from_end` bytes before the end of a file: among the messages that were stored last."""
    data = bytearray(path.read_bytes())
    start = max(0, len(data) - from_end)
    data[start : start + count] = bytes(byte ^ 0xFF for byte in data[start : start + count])
    path.write_bytes(data)


@asynccontextmanager
async def own_bus(
    stack: ExitStack, needs: ClusterNeeds
) -> AsyncIterator[tuple[NatsServer | None, TcpProxy, Path, int]]:
    """NATS behind a proxy, its directory and the proxy's port; without `own_bus` neither runs."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dilaserve-nats-")))
    if not needs.own_bus:
        yield None, TcpProxy(0), directory, 0
        return
    if needs.disk_mb:
        stack.enter_context(small_disk(directory, needs.disk_mb))
    server = NatsServer(directory)
    server.start()
    stack.callback(server.stop)
    proxy = TcpProxy(server.port)
    try:
        yield server, proxy, directory, await proxy.start()
    finally:
        await proxy.stop()


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[None]:
    """Mount a tmpfs on the directory during the body; only root may."""
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["/bin/umount", "--lazy", directory], check=True)


@contextmanager
def environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add variables to this process's environment during the body."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
