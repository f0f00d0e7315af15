"""Limits on the bytes of a cell's streams and buckets, and quick probes, on a real server."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.scheduler.io.lease import Lease
from shared.bus.client import Bus
from shared.bus.storage_limits import DISK_BYTES, MIN_DISK_BYTES, SMALL_BYTES
from shared.bus.subjects import stream_names
from shared.errors import StorageFull
from shared.messages.requests import Arrival, Outcome, OutcomeStatus, Request
from tests.support.nats import started_server

IN_MEMORY = ("STEPS", "STEP_RESULTS", "KV_instances")


async def limits(bus: Bus) -> dict[str, int]:
    """The maximum bytes of each stream and bucket of the cell."""
    infos = [await bus.js.stream_info(name) for name in stream_names(bus.subjects)]
    return {str(info.config.name): info.config.max_bytes or 0 for info in infos}


async def fill(bus: Bus, stream: str, message: Arrival | Outcome | Request, subject: str) -> None:
    """Store one message, and let the stream hold no more bytes than that."""
    await bus.store(subject, message)
    info = await bus.js.stream_info(stream)
    await bus.js.update_stream(info.config.evolve(max_bytes=info.state.bytes))


def outcome(request_id: str) -> Outcome:
    return Outcome(request_id=request_id, status=OutcomeStatus.COMPLETED, text="29")


async def test_the_limits_fit_the_setting_and_follow_its_changes_and_messages_stay(bus: Bus) -> None:
    await bus.store(bus.subjects.requests, Request(request_id="r1", prompt="x"))
    before = await limits(bus)
    await bus.set_up(2 * DISK_BYTES)
    after = await limits(bus)
    for name in ("REQUESTS", "OUTCOMES", "KV_claims", "OBJ_files"):
        assert after[f"{name}-{bus.subjects.cell}"] == 2 * before[f"{name}-{bus.subjects.cell}"], name
    await bus.set_up(MIN_DISK_BYTES)
    on_disk = {name: limit for name, limit in (await limits(bus)).items() if not name.startswith(IN_MEMORY)}
    assert min(on_disk.values()) > 0
    assert sum(on_disk.values()) <= MIN_DISK_BYTES + 5 * SMALL_BYTES
    assert (await bus.js.stream_info(bus.subjects.stream("REQUESTS"))).state.messages == 1


async def test_requests_and_the_lease_are_stored_while_outcomes_are_full(bus: Bus) -> None:
    await fill(bus, bus.subjects.stream("OUTCOMES"), outcome("r1"), bus.subjects.outcomes("r1"))
    with pytest.raises(StorageFull, match="the bus stores as many bytes there as it may"):
        await bus.store(bus.subjects.outcomes("r2"), outcome("r2"))
    assert await bus.outcome("r1") == outcome("r1")
    await bus.store(bus.subjects.requests, Request(request_id="r2", prompt="x"))
    lease = await Lease.acquire(bus, "test")
    assert lease.epoch > 0


async def test_a_full_stream_of_arrivals_drops_its_oldest_message(bus: Bus) -> None:
    stream = bus.subjects.stream("ARRIVALS")
    arrival = Arrival(request_id="r1", arrival_s=1.0, prompt_tokens=1, output_tokens=1, slo_s=1.0)
    await fill(bus, stream, arrival, bus.subjects.arrivals)
    await bus.store(bus.subjects.arrivals, arrival)
    state = (await bus.js.stream_info(stream)).state
    assert (state.messages, state.first_seq) == (1, 2)


async def test_a_server_with_too_little_room_serves_without_limits(tmp_path: Path) -> None:
    with started_server(tmp_path, max_file_store="100MB") as server:
        bus = await Bus.connect(server.url, "small", name="test")
        with capture_logs() as logs:
            await bus.set_up()
        assert any(line["event"].startswith("NATS cannot reserve the bytes") for line in logs)
        assert (await limits(bus))["OUTCOMES-small"] == -1
        await bus.store(bus.subjects.outcomes("r1"), outcome("r1"))
        await bus.close()
