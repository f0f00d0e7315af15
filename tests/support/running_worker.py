"""A worker as its own process on a real bus: fixtures, and what it publishes."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.messages.instances import Instance, InstanceState
from shared.messages.steps import StepResults
from tests.builders import ANY_MODEL
from tests.support.golden import COPY
from tests.support.leader import leading
from tests.support.nats import NatsServer
from tests.support.services import service

LIMIT_S = 60.0
MODEL = COPY / "llada" / "seed1"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
async def start_worker(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts workers in the test's cell and stops them at the end."""
    common = {"nats_url": nats_server.url, "cell": bus.subjects.cell, "threads": 1, "model": MODEL, "dtype": "float32"}
    async with leading(bus, ANY_MODEL):
        with ExitStack() as stack:

            def start(**settings: object) -> subprocess.Popen[bytes]:
                return stack.enter_context(service("worker", common | settings, tmp_path / "worker.log"))

            yield start


@pytest.fixture
async def registered(bus: Bus) -> AsyncIterator["Registrations"]:
    watcher = Registrations(bus)
    watching = asyncio.create_task(watcher.watch())
    yield watcher
    watching.cancel()


class Registrations:
    """Every change of the instances bucket, in order: the registration, or the id of one deleted."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._changes: asyncio.Queue[Instance | str] = asyncio.Queue()

    async def watch(self) -> None:
        bucket = await self._bus.bucket(self._bus.subjects.instances_bucket)
        async for entry in await bucket.watchall():
            if entry is not None:
                self._changes.put_nowait(entry.key if entry.operation else decode(entry.value or b"", Instance))

    async def next(self, wanted: Callable[[Instance | str], bool] = lambda _change: True) -> Instance | str:
        async with asyncio.timeout(LIMIT_S):
            while not wanted(change := await self._changes.get()):
                pass
        return change

    async def instance(self, state: InstanceState = InstanceState.READY) -> Instance:
        change = await self.next(lambda change: isinstance(change, Instance) and change.state is state)
        assert isinstance(change, Instance)
        return change


class Results:
    """The results that an instance publishes, in order."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()

    @classmethod
    async def of(cls, bus: Bus, instance: Instance) -> "Results":
        """Those from now on."""
        results = cls()

        async def receive(msg: Msg) -> None:
            results._arrived.put_nowait(msg.data)

        await bus.nc.subscribe(bus.subjects.step_results(instance.instance_id), cb=receive)
        return results

    @property
    def is_empty(self) -> bool:
        return self._arrived.empty()

    async def next(self) -> StepResults:
        async with asyncio.timeout(LIMIT_S):
            return decode(await self._arrived.get(), StepResults)
