"""The configuration of a cell on a real bus: who writes it, who waits for it, and who refuses to start."""

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.bus.cell_config import KeptConfig, read_config, replace_config, settle_config, wait_and_check_config
from shared.bus.client import Bus
from shared.bus.watch import BusWatch
from shared.errors import BadInput
from shared.messages.cell import CellConfig
from tests.builders import scheduler_stats
from tests.support.nats import NatsServer
from tests.support.services import service, stop
from tests.support.waiting import reached, until

LIMIT_S = 30.0
CONFIG = CellConfig(model="tiny-llada", policy="dilaserve", cache="dual")
SLOWER = CellConfig(model="tiny-llada", policy="dilaserve", cache="dual", default_slo_s=20.0)


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, LIMIT_S)


@pytest.fixture
def settings(nats_server: NatsServer, bus: Bus, tiny_model_dir: Path) -> dict[str, object]:
    return {"nats_url": nats_server.url, "cell": bus.subjects.cell, "model": tiny_model_dir}


async def test_the_first_configuration_stays_until_it_is_replaced(bus: Bus) -> None:
    assert await read_config(bus) is None
    assert await settle_config(bus, CONFIG) == CONFIG
    assert await settle_config(bus, SLOWER) == CONFIG
    await replace_config(bus, SLOWER)
    assert await read_config(bus) == SLOWER


async def test_it_can_be_replaced_before_a_scheduler_has_set_up_the_cell(nats_server: NatsServer) -> None:
    bus = await Bus.connect(nats_server.url, "not-set-up", name="test")
    await replace_config(bus, CONFIG)
    await bus.set_up()  # as the scheduler does later
    assert await settle_config(bus, SLOWER) == CONFIG
    await bus.close()


async def test_a_service_waits_for_the_configuration_and_takes_it(bus: Bus) -> None:
    waiting = asyncio.create_task(wait_and_check_config(bus, {"cache": "dual"}))
    await bus.nc.flush()
    await settle_config(bus, CONFIG)
    assert await asyncio.wait_for(waiting, LIMIT_S) == CONFIG
    with pytest.raises(BadInput, match="DILASERVE_CACHE=none, not dual"):
        await wait_and_check_config(bus, {"cache": "none"})


async def test_a_service_starts_under_a_scheduler_of_an_earlier_version(bus: Bus) -> None:
    async def lead() -> None:
        while True:
            await bus.publish(bus.subjects.stats("scheduler"), scheduler_stats())
            await asyncio.sleep(0.01)

    leading = asyncio.create_task(lead())
    assert await asyncio.wait_for(wait_and_check_config(bus, {"cache": "none"}), LIMIT_S) is None
    leading.cancel()


async def test_the_leader_stores_a_lost_configuration_again(bus: Bus) -> None:
    await settle_config(bus, CONFIG)
    kept = KeptConfig(bus, CONFIG)
    watch = BusWatch(bus, [kept.stream], 0.01)
    watch.follow(kept.settle)
    keeping = asyncio.create_task(watch.run())

    async def is_stored() -> bool:
        return await read_config(bus) == CONFIG

    await bus.nc.publish(bus.subjects.config, b"damaged")
    await until(is_stored)
    await bus.js.purge_stream(bus.subjects.stream("CONFIG"))
    await until(is_stored)
    with capture_logs() as logs:
        await replace_config(bus, SLOWER)
        await reached(lambda: bool(logs))
    assert "was replaced" in logs[0]["event"]
    assert await read_config(bus) == SLOWER
    keeping.cancel()


async def test_a_scheduler_writes_the_configuration_of_a_cell_that_has_none(
    bus: Bus, settings: Mapping[str, object], tmp_path: Path
) -> None:
    with service("scheduler", settings, tmp_path / "log"):

        async def is_written() -> bool:
            return await read_config(bus) == CONFIG

        await until(is_written)


@pytest.mark.parametrize(
    ("name", "own", "differing"),
    [
        ("scheduler", {"default_slo_s": 9}, "DILASERVE_DEFAULT_SLO_S=9.0, not 5.0"),
        ("gateway", {"model_name": "other", "port": 0}, "the model other, not tiny-llada"),
        ("reconfigurator", {"launcher": "process", "nodes": "local:2", "thresholds": 0.7}, "DILASERVE_THRESHOLDS=0.7"),
    ],
)
async def test_a_service_with_another_value_ends_with_one_line(
    name: str, own: dict[str, object], differing: str, bus: Bus, settings: dict[str, object], tmp_path: Path
) -> None:
    await settle_config(bus, CONFIG)
    with service(name, {**settings, "log_level": "error", **own}, tmp_path / "log") as running:
        assert await ended(running) == 2
    [line] = (tmp_path / "log").read_text().splitlines()
    assert line.startswith(f"{name}: not as in the cell {bus.subjects.cell}: {differing}")


@pytest.mark.slow
async def test_a_scheduler_on_standby_does_not_lead_after_a_replacement(
    bus: Bus, settings: Mapping[str, object], tmp_path: Path
) -> None:
    log = tmp_path / "standby"
    with service("scheduler", settings, tmp_path / "leader") as leader:
        await reached(lambda: "leading" in (tmp_path / "leader").read_text())
        with service("scheduler", settings, log) as standby:
            await reached(lambda: "standing by" in log.read_text())
            await replace_config(bus, SLOWER)
            assert await asyncio.to_thread(stop, leader) == 0
            assert await ended(standby) == 1
    assert "was replaced during the standby" in log.read_text()
