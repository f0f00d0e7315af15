"""Requests whose messages are lost in damaged files of NATS get an error; all others are served."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from services.scheduler.io.outcome_store import LOST
from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.messages.gateway import Claim
from shared.messages.requests import Arrival, Outcome, OutcomeStatus, Request
from tests.support.nats import NatsServer
from tests.support.present import present
from tests.support.scheduled_cell import LOG, Cluster
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
    damage: str, *, has_leader: bool, tmp_path: Path, tiny_model_dir: Path
) -> None:
    """Without a leader the requests have no arrivals, but claims."""
    server = NatsServer(tmp_path)
    server.start()
    bus = await Bus.connect(server.url, CELL, name="test")
    await bus.set_up()
    cluster = Cluster(bus, tiny_model_dir, tmp_path, server.url)
    try:
        with service("scheduler", cluster.settings, tmp_path / LOG) if has_leader else nullcontext() as scheduler:
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
        await bus.close()
        server.stop()
        [block] = (tmp_path / "store").glob(f"**/{bus.subjects.stream('REQUESTS')}/msgs/*.blk")
        content = bytearray(block.read_bytes())
        middle = len(content) // 2
        for at in range(middle, middle + DAMAGED_BYTES):
            content[at] ^= 0xFF
        block.write_bytes(content if damage == "flipped" else content[:middle])
        server.start()
        bus = await Bus.connect(server.url, CELL, name="test")
        cluster = Cluster(bus, tiny_model_dir, tmp_path, server.url)
        with service("scheduler", cluster.settings, tmp_path / LOG):
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
    finally:
        await bus.close()
        server.stop()


@pytest.mark.slow
async def test_a_request_of_an_earlier_scheduler_that_the_bus_lost_fails(
    bus: Bus, tiny_model_dir: Path, tmp_path: Path, nats_server: NatsServer
) -> None:
    """Also if the clock of the next scheduler's machine is an hour ahead."""
    cluster = Cluster(bus, tiny_model_dir, tmp_path, nats_server.url)
    await bus.set_up()
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
