"""Faults of the bus's disk: requests lost in damaged files get an error; a stream that refuses all writes is healed."""

import asyncio
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from dilaserve.stack import nats_restart
from dilaserve.stack.bus_users import new_passwords, user_url
from dilaserve.stack.nats import nats_programs, store_dir
from dilaserve.stack.nats_restart import write_errors
from dilaserve.stack.supervisor import Supervisor
from services.scheduler.io.outcome_store import LOST
from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.bus.users import BusUser
from shared.messages.gateway import Claim
from shared.messages.requests import Arrival, Outcome, OutcomeStatus, Request
from shared.tasks import cancel
from tests.support.nats import NatsServer, full_files, new_cell
from tests.support.present import present
from tests.support.scheduled_cell import Cluster
from tests.support.services import service
from tests.support.waiting import eventually, until

CELL = "damaged"
NAMES = [f"r-{i}" for i in range(20)]
DAMAGED_BYTES = 8


async def claim(bus: Bus, request_id: str, *, is_stored: bool = True) -> None:
    bucket = await bus.bucket(bus.subjects.claims_bucket)
    await bucket.put(request_id, encode(Claim(fingerprint="f", is_stored=is_stored)))


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "has_leader"), [("flipped", True), ("truncated", False)])
async def test_every_request_has_an_outcome_after_its_file_was_damaged(
    damage: str, *, has_leader: bool, own_server: NatsServer, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """Without a leader the requests have no arrivals, but claims."""
    async with new_cell(own_server, CELL) as bus:
        cluster = Cluster(bus, tiny_model_dir, tmp_path, own_server.url)
        with service("scheduler", cluster.settings, cluster.log) if has_leader else nullcontext() as scheduler:
            for name in NAMES:
                await bus.store(bus.subjects.requests, Request(request_id=name, prompt="2+2=", output_tokens=32))
                if not has_leader:
                    await claim(bus, name)
            if scheduler is not None:
                await eventually(
                    lambda: bus.js.stream_info(bus.subjects.stream("ARRIVALS")),
                    lambda found: found.state.messages == len(NAMES),
                )
                scheduler.kill()
    own_server.stop()
    [block] = (tmp_path / "store").glob(f"**/{bus.subjects.stream('REQUESTS')}/msgs/*.blk")
    content = bytearray(block.read_bytes())
    middle = len(content) // 2
    for at in range(middle, middle + DAMAGED_BYTES):
        content[at] ^= 0xFF
    block.write_bytes(content if damage == "flipped" else content[:middle])
    own_server.start()
    async with new_cell(own_server, CELL) as bus:
        cluster = Cluster(bus, tiny_model_dir, tmp_path, own_server.url)
        with service("scheduler", cluster.settings, cluster.log):
            async with cluster.instance():

                async def all_have_ended() -> bool:
                    return all([await bus.outcome(name) for name in NAMES])

                await until(all_have_ended, 60)  # takes 10 s on an idle machine
        ended = [each for name in NAMES if (each := await bus.outcome(name))]
    served = [each for each in ended if each.status is OutcomeStatus.COMPLETED]
    failed = [each.error.message for each in ended if each.error is not None]
    assert len(served) + len(failed) == len(NAMES)
    assert failed
    assert set(failed) == {LOST.message}


@pytest.mark.slow
async def test_a_request_of_an_earlier_scheduler_that_the_bus_lost_fails(bus: Bus, cluster: Cluster) -> None:
    """Also if the clock of the next scheduler's machine is an hour ahead."""
    lost = Arrival(request_id="lost", arrival_s=1.0, prompt_tokens=3, output_tokens=32, slo_s=1.0)
    await bus.store(bus.subjects.arrivals, lost)
    await claim(bus, "refused", is_stored=False)
    await claim(bus, "claimed")
    await claim(bus, "ended")
    await bus.store(bus.subjects.outcomes("ended"), Outcome(request_id="ended", status=OutcomeStatus.CANCELLED))
    with service("scheduler", cluster.settings, cluster.log, clock_ahead_s=3600.0):

        async def have_failed() -> bool:
            return None not in [await bus.outcome(name) for name in ("lost", "claimed")]

        await until(have_failed)
    for name in ("lost", "claimed"):
        found = present(await bus.outcome(name))
        assert (found.status, present(found.error).message) == (OutcomeStatus.FAILED, LOST.message)
    assert await bus.outcome("refused") is None  # it can be sent again
    assert present(await bus.outcome("ended")).status is OutcomeStatus.CANCELLED


FULL_BYTES = 4096  # of each file


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
    own_server: NatsServer, kind: str
) -> None:
    bus = await Bus.connect(own_server.url, CELL, name="test")
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
    await break_stream(bus, own_server.pid, stream, subjects[kind])
    errors = await write_errors(bus)
    assert list(errors) == [stream]
    assert "file too large" in errors[stream]
    own_server.stop()
    own_server.start()
    healed = await Bus.connect(own_server.url, CELL, name="test")
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
