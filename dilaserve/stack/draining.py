"""Orders a cell to drain, and waits until it has no requests."""

from collections.abc import Callable

from dilaserve.stack.observer import open_bus
from shared.bus.client import Bus, try_decode
from shared.bus.drain_order import order_drain
from shared.bus.errors import bus_errors
from shared.errors import BadInput, DilaserveError, NotCreated, RetryLater
from shared.messages.stats import STATS_S, SchedulerStats

ANSWER_S = 10 * STATS_S  # silence after which no scheduler leads


async def drain_cell(nats_url: str, nats_ca: str, cell: str, *, drains: bool, report: Callable[[str], None]) -> None:
    """Give the order, or withdraw it, and wait until the scheduler follows it; `report` receives the progress.

    Raises: BadInput if NATS does not answer or the cell was never set up; DilaserveError if no scheduler leads.
    """
    async with open_bus(nats_url, nats_ca, cell, "drain") as bus:
        try:
            await order_drain(bus, drains=drains)
        except NotCreated:
            raise BadInput(f"--cell {cell}: NATS has no such cell; it exists once its scheduler has started") from None
        except RetryLater as error:
            raise BadInput(f"--cell {cell}: {error}") from None
        await _follow(bus, cell, drains=drains, report=report)


async def _follow(bus: Bus, cell: str, *, drains: bool, report: Callable[[str], None]) -> None:
    """Wait until the scheduler publishes the order, and if the cell drains, until it has no requests."""
    published = await bus.nc.subscribe(bus.subjects.stats("scheduler"))
    left: int | None = None  # None: no scheduler has followed the order yet
    while True:
        try:
            stats = try_decode(await published.next_msg(ANSWER_S), SchedulerStats)
        except TimeoutError:
            raise DilaserveError(f"no scheduler leads the cell {cell}; the order is stored for the next one") from None
        if stats is None or stats.draining != drains:
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
