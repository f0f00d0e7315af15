"""The entries by which the parts of a cell show that they live: the leader's lease, and those of instances."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue
from structlog.testing import capture_logs

from services.scheduler.io import lease as lease_module
from services.scheduler.io import reconciliation
from services.scheduler.io.lease import KEY, Lease
from services.worker.io import registration as io_registration
from services.worker.io.registration import Registration
from shared.bus import client as bus_client
from shared.bus.cell_config import KeptConfig
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.bus.codec import decode
from shared.bus.instance_watch import InstanceWatch
from shared.bus.subjects import HEARTBEAT_S, LEASE_TTL_S, request_consumer
from shared.bus.watch import Look, StreamContent, StreamState
from shared.errors import Superseded
from shared.messages.cell import CellConfig
from shared.messages.instances import Instance, InstanceState
from shared.messages.requests import Arrival, Outcome, OutcomeStatus
from shared.tasks import cancel, during
from tests.builders import instance
from tests.support.nats import NatsServer, new_cell
from tests.support.waiting import LIMIT_S, eventually, reached, until

CONFIG = CellConfig(model="tiny-llada", policy="dilaserve", cache="dual")


async def expire(bus: Bus) -> None:
    """As if the bus had been unavailable."""
    await bus.js.purge_stream(f"KV_{bus.subjects.leases_bucket}")


async def test_an_expired_lease_is_renewed_if_there_was_no_other_leader(bus: Bus) -> None:
    lease = await Lease.acquire(bus, "first")
    await expire(bus)
    bucket = await bus.bucket(bus.subjects.leases_bucket)

    async def is_held() -> bool:
        try:
            return (await bucket.get(KEY)).value == b"first"
        except NotFoundError:
            return False

    async with during(lease.hold()):
        await until(is_held)
    await lease.release()
    assert (await Lease.acquire(bus, "second")).epoch > lease.epoch


async def test_a_leader_whose_bucket_was_deleted_leads_on_in_a_new_one(bus: Bus) -> None:
    lease = await Lease.acquire(bus, "first")
    stream = f"KV_{bus.subjects.leases_bucket}"

    async def is_renewed() -> bool:
        return (await bus.js.stream_info(stream)).state.last_seq >= 2

    async with during(lease.hold()):
        await until(is_renewed)
        await bus.js.delete_stream(stream)
        await bus.set_up()
        await until(is_renewed)


@pytest.mark.parametrize("still_leads", [False, True])
async def test_a_leader_is_superseded_if_another_scheduler_has_led(bus: Bus, *, still_leads: bool) -> None:
    lease = await Lease.acquire(bus, "first")
    await expire(bus)
    second = await Lease.acquire(bus, "second")
    if not still_leads:
        await second.release()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(Superseded):
            await lease.hold()
        if not still_leads:
            await Lease.acquire(bus, "third")


async def test_a_leader_whose_renewal_was_stored_without_an_answer_still_leads(bus: Bus) -> None:
    lease = await Lease.acquire(bus, "first")
    bucket = await bus.bucket(bus.subjects.leases_bucket)
    stored = await bucket.update(KEY, b"first", last=lease.epoch)
    async with during(lease.hold()):
        await eventually(lambda: bucket.get(KEY), lambda found: (found.revision or 0) > stored)


async def test_a_leader_that_cannot_renew_its_lease_is_not_live(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_client, "MAX_UNRENEWED_S", 2 * HEARTBEAT_S)
    stream = f"KV_{bus.subjects.leases_bucket}"
    config = (await bus.js.stream_info(stream)).config
    lease = await Lease.acquire(bus, "first")
    assert bus.is_live()
    async with during(lease.hold()):
        await bus.js.update_stream(config.evolve(max_msg_size=1))
        await reached(lambda: not bus.is_live())
        await bus.js.update_stream(config)
        await reached(bus.is_live)


async def test_a_former_leader_does_not_replace_what_the_next_has_stored(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, subjects = await Lease.acquire(bus, "first"), bus.subjects
    await expire(bus)
    await Lease.acquire(bus, "second")
    await bus.store(subjects.config, CONFIG)
    monkeypatch.setattr(lease_module, "LEASE_TTL_S", 0.0)
    earlier = replace(CONFIG, default_slo_s=20.0)
    await first.publish(subjects.config, earlier)
    kept = KeptConfig(bus, earlier)
    await first.fenced(kept.keep)(Look({kept.stream: StreamState(state=StreamContent(last_seq=5))}))
    await bus.store(subjects.config, CONFIG)
    assert (await bus.js.stream_info(kept.stream)).state.last_seq == 2


async def test_a_former_leader_fails_no_request_that_the_next_may_serve(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHECK_S", "SETTLE_S"):
        monkeypatch.setattr(reconciliation, name, 0.0)
    lease, clock, subjects = await Lease.acquire(bus, "first"), BusClock(), bus.subjects
    arrival = Arrival(request_id="r1", arrival_s=clock.now_s(), prompt_tokens=1, output_tokens=32, slo_s=5.0)
    await bus.store(subjects.arrivals, arrival)
    await bus.js.add_consumer(subjects.stream("REQUESTS"), request_consumer(lease.epoch))
    monkeypatch.setattr(lease_module, "LEASE_TTL_S", 0.0)
    with capture_logs() as logs:
        async with during(reconciliation.reconcile(bus, clock, lease, lambda _: False)):
            await reached(lambda: any("lost" in line["event"] for line in logs))
            served = Outcome(request_id="r1", status=OutcomeStatus.COMPLETED, arrival_s=arrival.arrival_s)
            assert await bus.store(subjects.outcomes("r1"), served, if_first=True)


LEASE_FAULTS = ("deleted", "purged", "written", "written for good", "emptied", "bucket deleted")


@pytest.mark.slow
async def test_a_lease_that_nobody_renews_is_taken_within_its_lifetime(nats_server: NatsServer) -> None:
    async with asyncio.TaskGroup() as cells:
        for fault in LEASE_FAULTS:
            cells.create_task(take_after(nats_server, fault))


async def take_after(server: NatsServer, fault: str) -> None:
    """Damage the lease of a leader that has ended, and take it."""
    async with new_cell(server) as bus:
        subjects = bus.subjects
        first = await Lease.acquire(bus, "first")
        await bus.js.add_consumer(subjects.stream("REQUESTS"), request_consumer(first.epoch))
        bucket, stream = await bus.bucket(subjects.leases_bucket), f"KV_{subjects.leases_bucket}"
        match fault:
            case "deleted":
                await bucket.delete(KEY)
            case "purged":
                await bucket.purge(KEY)
            case "written":
                await bucket.put(KEY, b"anything")
            case "written for good":
                config = (await bus.js.stream_info(stream)).config
                await bus.js.update_stream(config.evolve(max_age=0))
                await bucket.put(KEY, b"\xff")
            case "emptied":
                await bus.js.purge_stream(stream)
            case "bucket deleted":
                await bus.js.delete_stream(stream)
                await bus.set_up()
        async with asyncio.timeout(LEASE_TTL_S + 2):
            second = await Lease.acquire(bus, "second")
        assert second.epoch > first.epoch, fault


async def test_a_standby_is_live_and_creates_a_deleted_bucket_of_leases_again(
    bus: Bus, nats_server: NatsServer
) -> None:
    await Lease.acquire(bus, "first")
    standby = await Bus.connect(nats_server.url, bus.subjects.cell, name="standby")
    with capture_logs() as logs:
        waiting = asyncio.ensure_future(Lease.acquire(standby, "second", standby.set_up))
        await reached(lambda: any("standing by" in line["event"] for line in logs))
    assert standby.is_live()
    await bus.js.delete_stream(f"KV_{bus.subjects.leases_bucket}")
    async with asyncio.timeout(LIMIT_S):
        assert (await waiting).holder == "second"
    await standby.close()


async def test_after_a_reconnect_the_entry_reports_another_connection(bus: Bus) -> None:
    registration = Registration(bus, instance("a-1"))
    bus.reconnects.subscribe(registration.count_connection)
    bucket = await bus.bucket(bus.subjects.instances_bucket)
    reported = []
    for _ in range(2):
        await registration.renew()
        reported.append(decode((await bucket.get("a-1")).value or b"", Instance).connections)
        bus.reconnects.report()
    assert reported == [1, 2]


async def test_a_quarantined_instance_stays_so_and_its_unverified_time_grows(bus: Bus) -> None:
    registration = Registration(bus, instance("a-1"))
    bucket = await bus.bucket(bus.subjects.instances_bucket)
    await registration.quarantine("garbage", 100.0)
    first = decode((await bucket.get("a-1")).value or b"", Instance)
    await registration.renew()
    later = decode((await bucket.get("a-1")).value or b"", Instance)
    assert first.state is later.state is InstanceState.QUARANTINED
    assert 100.0 <= first.unverified_s < later.unverified_s
    await registration.drain()
    assert registration.instance.state is InstanceState.QUARANTINED


async def test_a_worker_that_starts_before_its_cell_is_set_up_registers_without_a_warning(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await Bus.connect(nats_server.url, "starting", name="test")
    tried: list[str] = []
    open_bucket, instances = bus.js.key_value, InstanceWatch()

    async def try_to_open(name: str) -> KeyValue:
        tried.append(name)
        return await open_bucket(name)

    monkeypatch.setattr(bus.js, "key_value", try_to_open)
    await instances.start(bus)
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(io_registration, "HEARTBEAT_S", 0.01)  # less than the time of the tries
        running = asyncio.create_task(Registration(bus, instance("a-1")).run())
        await reached(lambda: len(tried) > 3)
    assert not [line for line in logs if line["event"] == "registration not renewed"]
    await bus.set_up()
    await reached(lambda: bool(instances.instances()))
    await cancel([running])
    await bus.close()


async def test_an_instance_whose_entry_is_not_renewed_is_not_live(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    registration = Registration(bus, instance("a-1"))
    await registration.renew()
    assert bus.is_live()
    monkeypatch.setattr(bus_client, "MAX_UNRENEWED_S", 0.0)
    assert not bus.is_live()
    await bus.close()
    assert bus.is_live()  # a restart of the service would not help


async def test_the_liveness_file_is_not_touched_while_a_service_is_not_live(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_client, "TOUCH_S", 0.01)
    alive = tmp_path / "alive"
    bus = await Bus.connect(nats_server.url, "alive", name="test", alive_file=str(alive))
    asked = 0

    def is_live() -> bool:
        nonlocal asked
        asked += 1
        return False

    await reached(alive.exists)
    monkeypatch.setattr(bus, "is_live", is_live)
    await reached(lambda: asked > 0)
    alive.unlink()
    asked = 0
    await reached(lambda: asked > 1)
    assert not alive.exists()
    await bus.close()
