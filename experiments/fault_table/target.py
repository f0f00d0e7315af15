"""The cluster that a fault breaks, and the environment, bus and disk that some faults need."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.background import background_program
from experiments.fault_load import leading_process, processes_of
from experiments.fault_table.load import Answer
from experiments.live_cluster import READY_S, LiveCluster, is_ready
from tests.support.nats import NatsServer
from tests.support.tcp_proxy import TcpProxy


@dataclass(frozen=True, slots=True)
class ClusterNeeds:
    """How a fault's cluster differs from the others."""

    options: tuple[str, ...] = ()  # of `dilaserve up`
    environ: Mapping[str, str] = field(default_factory=dict)
    own_bus: bool = False  # whether NATS is a process of the experiment, behind a proxy
    disk_mb: int = 0  # size of that NATS's disk, a tmpfs; 0: a usual one
    own_model: bool = False  # whether the cluster serves a copy of the demo model, whose files may be damaged


@dataclass(slots=True)
class FaultTarget:
    """A running cluster."""

    cluster: LiveCluster
    nats_url: str
    prompts: Sequence[str]
    started: ExitStack  # ends the programs that a fault starts
    proxy: TcpProxy  # between the services and `nats`
    nats: NatsServer | None  # with `own_bus`
    directory: Path  # of `nats`, and of an own model
    burst: list[Answer] = field(default_factory=list)  # answers to requests that the fault sends

    @property
    def url(self) -> str:
        return self.cluster.url

    async def leader(self) -> psutil.Process:
        """The scheduler that leads."""
        return await leading_process(self.nats_url)

    def ports_of(self, name: str) -> set[int]:
        """The local ports of a service's connections."""
        return {each.laddr.port for process in processes_of(name) for each in process.net_connections()}

    async def restart_nats(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Kill NATS and start it on the same store, after `meanwhile`."""
        assert self.nats is not None, "the row has a bus of its own"
        await asyncio.to_thread(self.nats.stop, kill=True)
        meanwhile()
        await asyncio.to_thread(self.nats.start)

    async def restart_all(self) -> None:
        """SIGKILL every process, NATS included, then start all of them on the same data."""
        own = psutil.Process().children()
        [command] = [process for process in own if "up" in process.cmdline()]
        for process in [command, *command.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await self.restart_nats()
        again = background_program(self.cluster.command, lambda: is_ready(self.url), READY_S)
        await asyncio.to_thread(self.started.enter_context, again)


def flip_bytes(path: Path, from_end: int = 1000, count: int = 8) -> None:
    """Invert bytes `from_end` bytes before the end of a file: among the messages that were stored last."""
    data = bytearray(path.read_bytes())
    start = max(0, len(data) - from_end)
    data[start : start + count] = bytes(byte ^ 0xFF for byte in data[start : start + count])
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Drop the second half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def model_option(needs: ClusterNeeds, directory: Path) -> tuple[str, ...]:
    """The options of `dilaserve up` that name the model."""
    if not needs.own_model:
        return ()
    shutil.copytree(DEMO_MODEL, directory / DEMO_MODEL.name)
    return "--model", str(directory / DEMO_MODEL.name)


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
