"""A cell's configuration, which its scheduler sets and the others read, and the order to drain it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dilaserve.stack.draining import drain_cell
from shared.bus import client
from shared.bus.cell_config import KeptConfig, read_config, wait_for_config
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.watch import BusWatch, Look, StreamContent, StreamState
from shared.errors import BadInput
from shared.messages.cell import CellConfig
from shared.messages.requests import OutcomeStatus, Request
from shared.messages.stats import SchedulerStats
from tests.support.leader import leading
from tests.support.nats import NatsServer
from tests.support.scheduled_cell import Cluster
from tests.support.services import service, stop
from tests.support.waiting import eventually, reached

LIMIT_S = 30.0
CONFIG = CellConfig(model="tiny-llada", policy="dilaserve", cache="dual")
SLOWER = CellConfig(model="tiny-llada", policy="dilaserve", cache="dual", default_slo_s=20.0)


@pytest.fixture
def settings(nats_server: NatsServer, bus: Bus, tiny_model_dir: Path) -> dict[str, object]:
    return {"nats_url": nats_server.url, "cell": bus.subjects.cell, "model": tiny_model_dir}


async def holds(bus: Bus, config: CellConfig) -> None:
    """Wait until the bus has this configuration."""
    await eventually(lambda: read_config(bus), lambda found: found == config, LIMIT_S)


async def test_a_service_takes_the_values_of_the_leader_not_of_an_earlier_start(bus: Bus) -> None:
    await KeptConfig(bus, SLOWER).store()
    waiting = asyncio.create_task(wait_for_config(bus))
    await bus.nc.flush()
    assert not waiting.done()
    async with leading(bus, CONFIG):
        assert await asyncio.wait_for(waiting, LIMIT_S) == CONFIG


async def test_a_service_starts_under_a_scheduler_of_an_earlier_version(bus: Bus) -> None:
    async with leading(bus, None):
        assert await asyncio.wait_for(wait_for_config(bus), LIMIT_S) is None


async def test_the_leader_stores_a_configuration_again_that_was_lost_or_replaced(bus: Bus) -> None:
    kept = KeptConfig(bus, CONFIG)
    watch = BusWatch(bus, [kept.stream], 0.01)
    watch.follow(kept.keep)
    keeping = asyncio.create_task(watch.run())
    await holds(bus, CONFIG)
    await bus.nc.publish(bus.subjects.config, b"damaged")
    await holds(bus, CONFIG)
    await bus.js.purge_stream(bus.subjects.stream("CONFIG"))
    await holds(bus, CONFIG)
    with capture_logs() as logs:
        await bus.store(bus.subjects.config, SLOWER)
        await reached(lambda: bool(logs))
        await holds(bus, CONFIG)
    assert "changed" in logs[0]["event"]
    keeping.cancel()


async def test_a_stream_that_is_deleted_after_a_look_does_not_hold_up_the_next(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look finds it missing, so that the scheduler sets it up again."""
    monkeypatch.setattr(client, "STORE_S", 0.1)
    kept = KeptConfig(bus, CONFIG)
    await bus.js.delete_stream(kept.stream)
    async with asyncio.timeout(LIMIT_S):
        await kept.keep(Look({kept.stream: StreamState(state=StreamContent(last_seq=5))}))


async def test_the_environment_of_the_scheduler_that_leads_sets_the_values(
    bus: Bus, settings: Mapping[str, object], tmp_path: Path
) -> None:
    log = tmp_path / "standby"
    with service("scheduler", settings, tmp_path / "leader") as leader:
        await holds(bus, CONFIG)
        with service("scheduler", {**settings, "default_slo_s": 20}, log):
            await reached(lambda: "standing by" in log.read_text(), LIMIT_S)
            assert await read_config(bus) == CONFIG
            assert await asyncio.to_thread(stop, leader) == 0
            await holds(bus, SLOWER)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        pytest.param("gateway", {"port": 0, "default_slo_s": 9}, marks=pytest.mark.slow),
        pytest.param("predictor", {"predictor": "", "cache": "none"}, marks=pytest.mark.slow),
        ("reconfigurator", {"thresholds": 0.7, "cache": "none"}),
    ],
)
async def test_a_service_whose_environment_repeats_a_value_takes_that_of_the_cell(
    name: str, own: dict[str, object], bus: Bus, settings: dict[str, object], tmp_path: Path
) -> None:
    log, alive = tmp_path / "log", tmp_path / "alive"
    async with leading(bus, CONFIG):
        with service(name, {**settings, **own, "alive_file": alive}, log) as running:
            await reached(alive.exists, LIMIT_S)
            assert running.poll() is None
            assert stop(running) == 0, log.read_text()


async def drain(cluster: Cluster, *, undo: bool = False) -> list[str]:
    """The lines that `dilaserve drain` reports."""
    lines = list[str]()
    url, cell = str(cluster.settings["nats_url"]), cluster.bus.subjects.cell
    async with asyncio.timeout(LIMIT_S):
        await drain_cell(url, "", cell, drains=not undo, report=lines.append)
    return lines


async def is_draining(bus: Bus) -> bool:
    """Whether the scheduler next publishes that the cell drains."""
    subscription = await bus.nc.subscribe(bus.subjects.stats("scheduler"))
    msg = await subscription.next_msg(timeout=LIMIT_S)
    await subscription.unsubscribe()
    return decode(msg.data, SchedulerStats).draining


@pytest.mark.slow
async def test_a_cell_drains_until_the_order_is_withdrawn(bus: Bus, cluster: Cluster) -> None:
    async with cluster.instance():
        with service("scheduler", cluster.settings, cluster.log):
            await bus.wait_for_stream(f"KV_{bus.subjects.drain_bucket}")
            assert (await drain(cluster))[-1] == f"{bus.subjects.cell} is drained"
            request = Request(request_id="late", prompt="x", output_tokens=32)
            assert (await cluster.outcome(request)).status is OutcomeStatus.COMPLETED
        with service("scheduler", cluster.settings, cluster.log):
            assert await is_draining(bus)
            assert await drain(cluster, undo=True) == [f"{bus.subjects.cell} accepts requests"]
            assert not await is_draining(bus)


async def test_a_cell_that_was_never_set_up_is_not_drained(nats_server: NatsServer) -> None:
    with pytest.raises(BadInput, match="--cell unknown: NATS has no such cell; it exists once its scheduler"):
        await drain_cell(nats_server.url, "", "unknown", drains=True, report=lambda _: None)
