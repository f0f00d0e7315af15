"""A machine whose clock is an hour off changes no deadline."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from dilaserve.stack.ports import free_ports
from services.gateway.bus_connection import BusConnection
from services.gateway.stores.batch_store import WINDOW_S, BatchStore
from services.worker.io.registration import Registration
from shared.bus.client import Bus
from shared.bus.watch import BusWatch
from shared.messages.instances import InstanceState
from shared.settings import ServiceSettings
from tests.builders import instance
from tests.support.nats import NatsServer
from tests.support.scheduled_cell import Cluster
from tests.support.services import service
from tests.support.waiting import until

LIMIT_S = 20.0
SLO_S = 60.0
HOUR_S = 3600.0

SetClock = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Sets the error of this machine's clock, in seconds."""
    right = time.time

    def set_error(error_s: float) -> None:
        monkeypatch.setattr(time, "time", lambda: right() + error_s)

    return set_error


@pytest.mark.slow
@pytest.mark.parametrize(("scheduler_s", "gateway_s"), [(HOUR_S, -HOUR_S), (-HOUR_S, HOUR_S)])
async def test_a_request_has_its_whole_slo_if_clocks_are_an_hour_off(
    scheduler_s: float, gateway_s: float, cluster: Cluster, tmp_path: Path
) -> None:
    port = free_ports(1)[0]
    settings = cluster.settings | {"port": port}
    body = {"model": "tiny", "prompt": "2+2=", "max_tokens": 32, "slo_ms": 1000 * SLO_S}
    async with cluster.instance(), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as http:

        async def is_ready() -> bool:
            try:
                return (await http.get("/ready")).is_success
            except httpx.TransportError:
                return False

        with (
            service("scheduler", cluster.settings, cluster.log, clock_ahead_s=scheduler_s),
            service("gateway", settings, tmp_path / "gateway.log", clock_ahead_s=gateway_s),
        ):
            await until(is_ready, LIMIT_S)
            served = (await http.post("/v1/completions", json=body)).json()["dilaserve"]
    assert served["slo_met"]
    assert 0 < served["latency_ms"] < 1000 * LIMIT_S


@pytest.mark.parametrize("error_s", [-HOUR_S, HOUR_S])
async def test_a_batch_expires_a_day_later_by_the_clock_of_the_bus(
    error_s: float, bus: Bus, nats_server: NatsServer, set_clock: SetClock
) -> None:
    now_s = time.time()
    set_clock(error_s)
    connection = BusConnection()
    await connection.connect(ServiceSettings(nats_url=nats_server.url, cell=bus.subjects.cell))
    try:
        batch = await BatchStore(connection).create("", "/v1/completions", "file-1", {})
    finally:
        await connection.close()
    assert now_s - 1.0 <= batch.created_s <= now_s + LIMIT_S
    assert batch.expires_s - batch.created_s == WINDOW_S


async def test_a_step_of_the_clock_leaves_the_time_of_the_bus(bus: Bus, set_clock: SetClock) -> None:
    now_s, before = time.time(), watch_requests(bus)
    set_clock(-HOUR_S)
    after = watch_requests(bus)
    assert after.clock.now_s() < now_s - HOUR_S / 2
    for each in (before, after):
        await each.look()
        assert now_s <= each.clock.now_s() + 0.1 < now_s + LIMIT_S


def watch_requests(bus: Bus) -> BusWatch:
    return BusWatch(bus, [bus.subjects.stream("REQUESTS")], LIMIT_S)


async def test_a_draining_instance_reports_the_age_of_the_order(bus: Bus, set_clock: SetClock) -> None:
    registration = Registration(bus, instance("i-1"))
    await registration.drain(within_s=9.0)
    set_clock(HOUR_S)
    await registration.renew()
    first = registration.instance
    await registration.renew()
    second = registration.instance
    assert (second.state, second.drain_s) == (InstanceState.DRAINING, 9.0)
    assert 0 < first.draining_s < second.draining_s < LIMIT_S
    await registration.drain()
    assert (registration.instance.drain_s, registration.instance.draining_s < second.draining_s) == (0.0, True)
