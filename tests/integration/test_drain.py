"""`dilaserve drain`: a scheduler follows the order, ends its requests, and publishes that the cell drains."""

import asyncio
from pathlib import Path

import pytest

from dilaserve.stack.draining import drain_cell
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.errors import BadInput
from shared.messages.requests import OutcomeStatus, Request
from shared.messages.stats import SchedulerStats
from tests.support.nats import NatsServer
from tests.support.scheduled_cell import Cluster
from tests.support.services import service

LIMIT_S = 20.0


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
async def test_a_cell_drains_until_the_order_is_withdrawn(
    bus: Bus, nats_server: NatsServer, tiny_model_dir: Path, tmp_path: Path
) -> None:
    cluster = Cluster(bus, tiny_model_dir, tmp_path, nats_server.url)
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
    with pytest.raises(BadInput, match=r"--cell unknown: .*; a cell exists once its scheduler has started"):
        await drain_cell(nats_server.url, "", "unknown", drains=True, report=lambda _: None)
