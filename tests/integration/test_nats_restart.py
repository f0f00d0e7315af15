"""NATS refuses all writes to a stream after one failed: every kind of stream is found, and `dilaserve up` heals it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from dilaserve.stack import nats_restart
from dilaserve.stack.bus_users import new_passwords, user_url
from dilaserve.stack.nats import nats_programs, store_dir
from dilaserve.stack.nats_restart import write_errors
from dilaserve.stack.supervisor import Supervisor
from shared.bus.client import Bus
from shared.bus.users import BusUser
from shared.messages.requests import Request
from shared.tasks import cancel
from tests.support.nats import NatsServer, full_files, started_server
from tests.support.waiting import eventually, until

CELL = "cell0"
FULL_BYTES = 4096  # of each file


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    with started_server(tmp_path) as started:
        yield started


def server_pid(directory: Path) -> int | None:
    """The process of the supervised server; None while it restarts."""
    config = str(directory / "nats" / "nats.conf")
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # a child that has ended since
            if config in child.cmdline():
                return int(child.pid)
    return None


async def break_stream(bus: Bus, pid: int, stream: str, subject: str) -> None:
    """Let writes to the stream fail, then give its files room again."""
    with full_files(pid, FULL_BYTES):

        async def is_broken() -> bool:
            with suppress(NatsTimeoutError):
                await bus.js.publish(subject, bytes(FULL_BYTES), timeout=0.1)
            return stream in await write_errors(bus)

        await until(is_broken)


@pytest.mark.parametrize("kind", ["REQUESTS", "OUTCOMES", "KV_claims", "OBJ_files"])
async def test_a_stream_that_is_no_longer_written_is_found_until_the_server_restarts(
    server: NatsServer, kind: str
) -> None:
    bus = await Bus.connect(server.url, CELL, name="test")
    await bus.set_up()
    await bus.store(bus.subjects.requests, Request(request_id="r1", prompt="x"))
    assert await write_errors(bus) == {}
    stream = bus.subjects.stream(kind)
    subjects = {
        "REQUESTS": bus.subjects.requests,
        "OUTCOMES": bus.subjects.outcomes("r1"),
        "KV_claims": f"$KV.{bus.subjects.claims_bucket}.a",
        "OBJ_files": f"$O.{bus.subjects.files_store}.C.a",
    }
    await break_stream(bus, server.pid, stream, subjects[kind])
    errors = await write_errors(bus)
    assert list(errors) == [stream]
    assert "file too large" in errors[stream]
    server.stop()
    server.start()
    healed = await Bus.connect(server.url, CELL, name="test")
    await eventually(lambda: write_errors(healed), lambda found: found == {})
    assert (await healed.js.stream_info(healed.subjects.stream("REQUESTS"))).state.messages >= 1
    for each in (bus, healed):
        await each.close()


async def test_up_restarts_the_server_once_its_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_restart, "CHECK_S", 0.05)
    monkeypatch.setattr(nats_restart, "MIN_FREE_BYTES", 2**62)  # the disk is full
    passwords, supervisor = new_passwords([]), Supervisor()
    [(address, program)] = nats_programs(tmp_path, 1, "2m", CELL, passwords).items()
    supervisor.start(program)
    user = BusUser.OPERATOR
    bus = await Bus.connect(user_url(user, passwords[user], address), CELL, name="test")
    await bus.set_up()
    restarts = nats_restart.restart_when_unwritable(supervisor, "nats", bus, store_dir(tmp_path, 1))
    watching = asyncio.create_task(restarts)
    before = server_pid(tmp_path)
    assert before is not None
    await break_stream(bus, before, bus.subjects.stream("REQUESTS"), bus.subjects.requests)
    assert await write_errors(bus) != {}
    monkeypatch.setattr(nats_restart, "MIN_FREE_BYTES", 0)
    await eventually(
        lambda: write_errors(bus), lambda found: server_pid(tmp_path) not in (None, before) and found == {}
    )
    await bus.store(bus.subjects.requests, Request(request_id="r1", prompt="x"))
    await cancel([watching])
    await bus.close()
    await supervisor.stop(["nats"], within_s=20.0)
