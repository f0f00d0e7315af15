"""Orders a cell to drain, and waits until it has no requests."""

import asyncio
from collections.abc import Callable
from functools import partial

from nats.aio.msg import Msg

from dilaserve.stack.probes import check_answers, nats_answers
from shared.bus.client import Bus, try_decode
from shared.bus.drain_order import order_drain
from shared.bus.errors import bus_errors
from shared.errors import BadInput, DilaserveError, RetryLater
from shared.messages.stats import STATS_S, SchedulerStats
from shared.settings import check_nats_url
from shared.urls import without_credentials

ANSWER_S = 10 * STATS_S  # silence after which no scheduler leads


async def drain_cell(nats_url: str, nats_ca: str, cell: str, *, drains: bool, report: Callable[[str], None]) -> None:
    """Give the order, or withdraw it, and wait until the scheduler follows it; `report` receives the progress.

    Raises: BadInput if NATS does not answer or the cell was never set up; DilaserveError if no scheduler leads.
    """
    check_nats_url(nats_url, "--nats-url")
    await check_answers(partial(nats_answers, ca=nats_ca), nats_url, f"NATS at {without_credentials(nats_url)}")
    bus = await Bus.connect(nats_url, cell, name="drain", ca=nats_ca)
    try:
        try:
            await order_drain(bus, drains=drains)
        except RetryLater as error:
            raise BadInput(f"--cell {cell}: {error}; a cell exists once its scheduler has started") from None
        await _follow(bus, cell, drains=drains, report=report)
    finally:
        await bus.close()


async def _follow(bus: Bus, cell: str, *, drains: bool, report: Callable[[str], None]) -> None:
    """Wait until the scheduler publishes the order, and if the cell drains, until it has no requests."""
    received: asyncio.Queue[SchedulerStats] = asyncio.Queue()

    async def receive(msg: Msg) -> None:
        if (stats := try_decode(msg, SchedulerStats)) is not None:
            received.put_nowait(stats)

    await bus.nc.subscribe(bus.subjects.stats("scheduler"), cb=receive)
    left: int | None = None  # None: no scheduler has followed the order yet
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                stats = await received.get()
        except TimeoutError:
            raise DilaserveError(f"no scheduler leads the cell {cell}; the order is stored for the next one") from None
        if stats.draining != drains:
            continue
        if not drains:
            report(f"{cell} accepts requests")
            return
        requests = await _unfinished(bus)
        if requests == 0 and left is not None:  # gateways have known the order for STATS_S
            report(f"{cell} is drained")
            return
        if requests != left:
            report(f"{cell} drains: {requests} requests left")
        left = requests


async def _unfinished(bus: Bus) -> int:
    """The requests on the bus without an outcome. Raises: RetryLater."""
    with bus_errors("count the unfinished requests"):
        return (await bus.js.stream_info(bus.subjects.stream("REQUESTS"))).state.messages
