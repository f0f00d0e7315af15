"""NATS servers as processes of this one, so that a killed server stays down, as one whose machine is lost."""

import asyncio
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nats.js.api import StreamInfo

from dilaserve.stack.bus_users import new_passwords, user_url
from dilaserve.stack.nats import nats_programs
from dilaserve.stack.process import Program
from experiments.live_cluster import CELL, SUBJECTS, connected
from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS
from shared.bus.subjects import stream_names
from shared.bus.users import BusUser

CURRENT_S = 120.0  # limit until every server has every message again


class BusServers:
    """The servers by their names."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        self._programs = {program.name: program for program in programs.values()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in self._programs:
            self.start(name)

    def start(self, name: str) -> None:
        program = self._programs[name]
        assert program.log is not None, "a server has a log"
        with program.log.open("ab") as log:
            self.processes[name] = subprocess.Popen(program.command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)


@contextmanager
def bus_servers(count: int) -> Iterator[tuple[BusServers, str]]:
    """Run the servers during the body. Yields: them, and the URL for the operator."""
    with tempfile.TemporaryDirectory(prefix="dilaserve-nats-") as directory:
        passwords = new_passwords()
        programs = nats_programs(Path(directory), count, "2m", CELL, passwords)
        user = BusUser.OPERATOR
        servers = BusServers(programs)
        try:
            yield servers, ",".join(user_url(user, passwords[user], address) for address in programs)
        finally:
            servers.close()


async def leaders(nats_url: str) -> dict[str, str]:
    """The server that leads each stream and bucket, once each has all its replicas."""
    async with connected(nats_url) as bus, asyncio.timeout(CURRENT_S):
        while True:
            infos = [await _info(bus, name) for name in sorted(stream_names(SUBJECTS))]
            if all(info is not None and _is_current(info) for info in infos):
                return {str(info.config.name): _leader_of(info) for info in infos if info is not None}
            await asyncio.sleep(0.5)


async def _info(bus: Bus, stream: str) -> StreamInfo | None:
    try:
        return await bus.js.stream_info(stream)
    except BUS_ERRORS:
        return None


def _leader_of(info: StreamInfo) -> str:
    """The name of the server that leads a stream; the only server has the name `nats` here."""
    return str(info.cluster.leader) if info.cluster and info.cluster.name else "nats"


def _is_current(info: StreamInfo) -> bool:
    """Whether every replica has all messages of the stream."""
    if info.cluster is None or info.config.num_replicas == 1:
        return True
    replicas = info.cluster.replicas or []
    return len(replicas) + 1 == info.config.num_replicas and all(each.current for each in replicas)
