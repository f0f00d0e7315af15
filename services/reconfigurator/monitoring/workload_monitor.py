"""The workload monitor: every arrival and outcome on the bus, and every plan, becomes a row in Postgres.

Postgres may be away: serving goes on, the messages stay in their streams (for ARRIVAL_AGE_S and OUTCOME_AGE_S, and the
newest MAX_PLANS; older ones are lost to the statistics) and are written when it is back. They are acknowledged after
their rows are committed, and writing a row twice changes nothing, so each counts exactly once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError
from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring.database_rows import Row, arrival_row, outcome_row, plan_row
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.subjects import monitor_consumer
from shared.database.schema import Base, PlanRow, RequestRow, upgrade
from shared.errors import BadInput, RetryLater
from shared.messages.plans import PlanRecord
from shared.messages.requests import Arrival, Outcome
from shared.tasks import run_until_stopped

log = structlog.get_logger(__name__)

BATCH = 500  # rows a transaction
IDLE_S = 0.5  # how long a batch may take to fill; so also how old a row may be
RETRY_S = (0.2, 5.0)  # first and longest wait while the bus or the database is away


@dataclass(frozen=True, slots=True)
class MonitoredStream:
    """A stream whose messages become rows of a table."""

    stream: str
    kind: type[msgspec.Struct]
    table: type[Base]
    row: Callable[[Any], Row]
    replaces: bool = True  # else a row that is there stays as it is


MONITORED_STREAMS = (
    MonitoredStream("ARRIVALS", Arrival, RequestRow, arrival_row, replaces=False),  # it may come after the outcome
    MonitoredStream("OUTCOMES", Outcome, RequestRow, outcome_row),
    MonitoredStream("PLANS", PlanRecord, PlanRow, plan_row),
)


async def monitor(bus: Bus, engine: AsyncEngine, metrics: ReconfiguratorMetrics, stop: asyncio.Event) -> None:
    """Write rows until `stop` is set. Brings the database's tables up to date first."""
    await eventually(partial(upgrade, engine), stop)
    async with asyncio.TaskGroup() as group:
        for feed in MONITORED_STREAMS:
            group.create_task(_follow(feed, bus, engine, metrics, stop))


async def _follow(
    feed: MonitoredStream, bus: Bus, engine: AsyncEngine, metrics: ReconfiguratorMetrics, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        await eventually(partial(_record_stream, feed, bus, engine, metrics, stop), stop)


async def _record_stream(
    feed: MonitoredStream, bus: Bus, engine: AsyncEngine, metrics: ReconfiguratorMetrics, stop: asyncio.Event
) -> None:
    """Raises: RetryLater when the bus does not answer."""
    stream = bus.subjects.stream(feed.stream)
    subscription = None
    try:
        if not await _there(bus, stream, stop):
            return
        await bus.js.add_consumer(stream, monitor_consumer())
        subscription = await bus.js.pull_subscribe_bind(monitor_consumer().durable_name, stream)
        while not stop.is_set():
            written = await _record(feed, await _next_batch(subscription), engine, stop)
            metrics.wrote(feed.stream, written)
    except (nats.errors.Error, APIError, TimeoutError) as error:
        raise RetryLater(f"the bus does not answer: {error!r}") from error
    finally:
        if subscription and not bus.nc.is_closed:
            await subscription.unsubscribe()


async def _there(bus: Bus, stream: str, stop: asyncio.Event) -> bool:
    """Wait until the scheduler has made the stream. Returns: False if `stop` came first."""
    await run_until_stopped(stop, bus.wait_for_stream(stream))
    return not stop.is_set()


async def write_rows(feed: MonitoredStream, engine: AsyncEngine, rows: Sequence[Row]) -> None:
    """Insert rows, or take over what they say of rows that are there, all or none.

    Raises: BadInput if Postgres cannot hold a value; RetryLater if it is away.
    """
    statement = insert(feed.table)
    columns, keys = feed.table.__table__.columns, [key.name for key in feed.table.__table__.primary_key]
    if feed.replaces:
        said = {name: func.coalesce(statement.excluded[name], columns[name]) for name in rows[0]}
        statement = statement.on_conflict_do_update(index_elements=keys, set_=said)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    try:
        async with engine.begin() as connection:
            await connection.execute(statement, rows)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        if _is_about_values(error):
            raise BadInput(f"not a row: {_reason(error)}") from error
        raise RetryLater(f"Postgres is away: {_reason(error)}") from error


async def eventually(work: Callable[[], Awaitable[None]], stop: asyncio.Event) -> bool:
    """Do the work, again and again with back-off while a server is away. Returns: False if `stop` came first."""
    wait_s, longest_s = RETRY_S
    while not stop.is_set():
        try:
            await work()
        except (RetryLater, SQLAlchemyError, OSError) as error:
            log.warning("trying again", error=_reason(error), wait_s=wait_s)
        else:
            return True
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)
        wait_s = min(2 * wait_s, longest_s)
    return False


async def _next_batch(subscription: JetStreamContext.PullSubscription) -> list[Msg]:
    try:
        return await subscription.fetch(BATCH, timeout=IDLE_S)
    except TimeoutError:  # nats-py's own is one
        return []


async def _record(feed: MonitoredStream, messages: Sequence[Msg], engine: AsyncEngine, stop: asyncio.Event) -> int:
    """Write a batch and settle it. Interrupted by `stop`, it is delivered again to the next monitor.

    Returns: how many of the messages are written.
    """
    readable = [(msg, row) for msg in messages if (row := await _read(feed, msg)) is not None]
    if not readable:
        return 0
    try:
        if not await eventually(partial(write_rows, feed, engine, [row for _, row in readable]), stop):
            return 0
        await asyncio.gather(*(msg.ack() for msg, _ in readable))
    except BadInput as error:
        if len(readable) == 1:
            await _bury(readable[0][0], error)
            return 0
        return sum([await _record(feed, [msg], engine, stop) for msg, _ in readable])  # one at a time, to find it
    return len(readable)


async def _read(feed: MonitoredStream, msg: Msg) -> Row | None:
    """The row of a message; None if there is none in it, and it is buried."""
    try:
        return feed.row(decode(msg.data, feed.kind))
    except BadInput as error:
        await _bury(msg, error)
        return None


async def _bury(msg: Msg, error: BadInput) -> None:
    log.warning("unreadable message buried", subject=msg.subject, error=error.message)
    await msg.term()


def _is_about_values(error: Exception) -> bool:
    """Whether Postgres refuses a value: SQLSTATE classes 22, data exception, and 23, integrity violation."""
    return isinstance(error, DBAPIError) and str(getattr(error.orig, "sqlstate", "")).startswith(("22", "23"))


def _reason(error: BaseException) -> str:
    """One line: the driver's own words where there are some."""
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split()) or type(error).__name__
