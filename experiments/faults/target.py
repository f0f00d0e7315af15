"""The cluster on this machine that a fault breaks, and the environment, bus, disk and model that some faults need."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx
import msgspec
import psutil

from dilaserve.load.client import open_client
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.background import background_program
from experiments.faults.accounts import Received, received_outcomes
from experiments.faults.bus_servers import BusServers, bus_servers
from experiments.faults.load import ANSWER_S, THRESHOLD, Answer
from experiments.live_cluster import READY_S, LiveCluster, connected, is_ready, live_cluster
from services.scheduler.io.lease import KEY as LEASE_KEY
from tests.support.nats import NatsServer
from tests.support.tcp_proxy import TcpProxy

OPTIONS = ("--instances", "2x1", "--policy", "dilaserve", "--thresholds", THRESHOLD, "--cache", "dual")


class UnderLoad(Protocol):
    """A running cluster under load."""

    @property
    def burst(self) -> list[Answer]:
        """Answers to the requests that the fault sends."""

    def client(self) -> httpx.AsyncClient:
        """A client of the gateway, or of several."""

    def outcomes(self) -> AbstractAsyncContextManager[Received]:
        """Receive the outcomes during the body; complete when it has ended."""

    async def serves_again(self) -> None:
        """Wait until what the fault has broken is back."""


@dataclass(frozen=True, slots=True)
class ClusterNeeds:
    """How a fault's cluster differs from the others."""

    options: tuple[str, ...] = ()  # of `dilaserve up`
    environ: Mapping[str, str] = field(default_factory=dict)
    own_bus: bool = False  # whether NATS is a process of the experiment, behind a proxy
    disk_mb: int = 0  # size of the disk of all data, a tmpfs; 0: a usual one
    bus_servers: int = 0  # number of NATS servers, as processes of the experiment; 0: that of `dilaserve up`
    own_model: bool = False  # whether the cluster serves a copy of the demo model, whose files may be damaged


@dataclass(slots=True)
class LocalTarget:
    """A cluster on this machine."""

    cluster: LiveCluster
    nats_url: str
    started: ExitStack  # ends the programs that a fault starts
    directory: Path  # of `nats`, and of an own model
    proxy: TcpProxy  # between the services and `nats`
    nats: NatsServer | None  # with `own_bus`
    servers: BusServers | None  # with `bus_servers`
    key: str = ""  # API key of the load; empty: none is required
    burst: list[Answer] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.cluster.url

    def client(self) -> httpx.AsyncClient:
        return open_client(self.url, httpx.Timeout(ANSWER_S), self.key)

    async def new_key(self) -> str:
        """The secret of another API key."""
        data_dir = self.cluster.command[self.cluster.command.index("--data-dir") + 1]
        command = [sys.executable, "-m", "dilaserve", "keys", "create", uuid.uuid4().hex, "--json", "--data-dir"]
        created = await asyncio.to_thread(subprocess.run, [*command, str(data_dir)], check=True, capture_output=True)
        return str(msgspec.json.decode(created.stdout)["secret"])

    def outcomes(self) -> AbstractAsyncContextManager[Received]:
        return received_outcomes(self.nats_url)

    async def serves_again(self) -> None:
        """Return at once: what is not back yet shows in the figures."""

    async def leader(self) -> psutil.Process:
        """The scheduler that leads."""
        return await leading_process(self.nats_url)

    def ports_of(self, name: str) -> set[int]:
        """The local ports of a service's connections."""
        return {each.laddr.port for process in processes_of(name) for each in process.net_connections()}

    async def restart_nats(self, meanwhile: Callable[[], None] = lambda: None, after_s: float = 0.0) -> None:
        """Kill NATS and start it on the same store, after `meanwhile` and `after_s` seconds."""
        assert self.nats is not None, "the row has a bus of its own"
        await asyncio.to_thread(self.nats.stop, kill=True)
        meanwhile()
        await asyncio.sleep(after_s)
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


@asynccontextmanager
async def local_target(needs: ClusterNeeds) -> AsyncIterator[LocalTarget]:
    """A cluster of two instances with these needs during the body."""
    with ExitStack() as stack:
        stack.enter_context(_environment(needs.environ))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dilaserve-nats-")))
        nats, servers, options, nats_url = None, None, [*OPTIONS, *needs.options], ""
        proxy = TcpProxy(0)
        if needs.disk_mb:
            stack.enter_context(_small_disk(directory, needs.disk_mb))
        if needs.bus_servers:
            servers, nats_url = stack.enter_context(bus_servers(needs.bus_servers))
            options += ["--nats-url", nats_url]
        if needs.own_bus:
            nats = NatsServer(directory)
            nats.start()
            stack.callback(nats.stop)
            proxy, nats_url = TcpProxy(nats.port), nats.url
            options += ["--nats-url", f"nats://127.0.0.1:{await proxy.start()}"]
        if needs.own_model:
            shutil.copytree(DEMO_MODEL, directory / DEMO_MODEL.name)
            options += ["--model", str(directory / DEMO_MODEL.name)]
        try:
            cluster = await asyncio.to_thread(stack.enter_context, live_cluster(*options, within=directory))
            target = LocalTarget(cluster, nats_url or cluster.nats_url, stack, directory, proxy, nats, servers)
            if "--auth" in options:
                target.key = await target.new_key()
            yield target
        finally:
            await asyncio.to_thread(stack.close)  # the services end while the proxy still runs
            await proxy.stop()


def processes_of(name: str) -> list[psutil.Process]:
    """The processes below this one of a service, of `nats-server` or of `postgres`, without their children of the same
    name."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            parent = child.parent()
            is_part = child.name() == name and parent is not None and parent.name() == name
            if not is_part and (child.name() == name or f"services.{name}" in child.cmdline()):
                found.append(child)
    return found


async def leading_process(nats_url: str) -> psutil.Process:
    """The scheduler of this machine that holds the lease."""
    async with connected(nats_url) as bus:
        lease = await (await bus.bucket(bus.subjects.leases_bucket)).get(LEASE_KEY)
    return psutil.Process(int((lease.value or b"").rpartition(b":")[2]))


@contextmanager
def _small_disk(directory: Path, megabytes: int) -> Iterator[None]:
    """Mount a tmpfs on the directory during the body; only root may."""
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["/bin/umount", "--lazy", directory], check=True)


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add variables to this process's environment during the body."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
