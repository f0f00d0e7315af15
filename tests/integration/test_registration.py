"""An instance's entry in the instances bucket."""

import asyncio
from pathlib import Path

import pytest
from nats.js.kv import KeyValue
from structlog.testing import capture_logs

from services.worker.io import registration as io_registration
from services.worker.io.registration import Registration
from shared.bus import client as bus_client
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.instance_watch import InstanceWatch
from shared.messages.instances import Instance, InstanceState
from shared.tasks import cancel
from tests.builders import instance
from tests.support.nats import NatsServer
from tests.support.waiting import reached


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
    assert bus.is_live()  # a restart of the worker would not help


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
