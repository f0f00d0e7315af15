"""The workload monitor: writes every arrival, outcome and plan on the bus to Postgres, and deletes old requests there.

If Postgres is unavailable, serving continues. The messages stay in their streams (for ARRIVAL_AGE_S and OUTCOME_AGE_S,
and the newest MAX_PLANS; older ones are missing from the statistics) and are written once it is back. They are
acknowledged after their rows are committed, and writing a row twice changes nothing, so each counts exactly once.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring.database_rows import Row, arrival_row, outcome_row, plan_row
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.errors import bus_errors
from shared.bus.settlement import acknowledge, discard
from shared.bus.subjects import monitor_consumer
from shared.database.errors import database_errors, refused_rows
from shared.database.schema import Base, PlanRow, RequestRow, upgrade
from shared.errors import BadInput, RetryLater
from shared.messages.plans import PlanRecord
from shared.messages.requests import Arrival, Outcome
from shared.retry import retry
from shared.tasks import pause, run_together

log = structlog.get_logger(__name__)

MAX_BATCH = 500  # rows per transaction
BATCH_S = 0.8  # time in which the messages of a batch arrive, and so the delay of a row
EMPTY_S = 2.0  # limit of the wait for the first message of a batch; a wait that a reconnect lost is repeated after it
REST_S = 0.1  # limit of the fetch of the others
WRITE_DELAY_S = BATCH_S + REST_S + 0.1  # from an arrival until its row is in Postgres: 0.1 s for scheduler and Postgres
MAX_EXPIRED_ROWS = 1000  # deleted per transaction
EXPIRY_PAUSE_S = 0.1  # between two of these transactions, for the work of others
EXPIRY_INTERVAL_S = 600.0  # from the last old row to the next search


@dataclass(frozen=True, slots=True)
class MonitoredStream:
    stream: str
    kind: type[msgspec.Struct]
    table: type[Base]
    row: Callable[[Any], Row]
    replaces: bool = True  # False: an existing row stays as it is


MONITORED_STREAMS = (
    MonitoredStream("ARRIVALS", Arrival, RequestRow, arrival_row, replaces=False),  # may arrive after the outcome
    MonitoredStream("OUTCOMES", Outcome, RequestRow, outcome_row),
    MonitoredStream("PLANS", PlanRecord, PlanRow, plan_row),
)


async def monitor(bus: Bus, engine: AsyncEngine, metrics: ReconfiguratorMetrics, retention_s: float) -> None:
    """Migrate the database, again and again until that succeeds, then write rows until cancelled.

    Rows of requests are deleted `retention_s` seconds after the arrival. The unfinished batch is delivered again, to
    the next monitor.
    """
    await retry(partial(_migrate, engine))
    following = [retry(partial(_follow, monitored, bus, engine, metrics)) for monitored in MONITORED_STREAMS]
    await run_together([expire_requests(engine, retention_s), *following])


async def _migrate(engine: AsyncEngine) -> None:
    with database_errors():
        await upgrade(engine)


async def _follow(monitored: MonitoredStream, bus: Bus, engine: AsyncEngine, metrics: ReconfiguratorMetrics) -> None:
    stream = bus.subjects.stream(monitored.stream)
    await bus.wait_for_stream(stream)
    with bus_errors(f"read the stream {stream}"):
        await bus.js.add_consumer(stream, monitor_consumer())
        subscription = await bus.js.pull_subscribe_bind(monitor_consumer().durable_name, stream)
        messages = list[Msg]()
        try:
            while True:
                messages = await _next_batch(subscription, BATCH_S if len(messages) < MAX_BATCH else 0.0)
                metrics.wrote(monitored.stream, await _record(monitored, messages, engine))
        finally:
            if not bus.nc.is_closed:
                await subscription.unsubscribe()


async def check_written(bus: Bus, until_s: float) -> None:
    """Check that Postgres has all arrivals up to `until_s`, Unix time, so that no decision reads half a window.

    Raises: RetryLater if the monitor has yet to write one of them, or if the bus does not answer.
    """
    stream = bus.subjects.stream("ARRIVALS")
    arrival_s = 0.0  # of the first message that is not written, if that is invalid: discarded soon
    with bus_errors("read the state of the workload monitor"), suppress(BadInput):
        consumer = await bus.js.consumer_info(stream, str(monitor_consumer().durable_name))
        next_number = consumer.ack_floor.stream_seq + 1 if consumer.ack_floor else 1
        try:
            unwritten = await bus.js.get_msg(stream, next_number, bus.subjects.arrivals, next=True)
        except NotFoundError:
            return
        arrival_s = decode(unwritten.data or b"", Arrival).arrival_s
    if arrival_s <= until_s:
        raise RetryLater("the workload monitor has yet to write arrivals to Postgres")


async def _next_batch(subscription: JetStreamContext.PullSubscription, within_s: float) -> list[Msg]:
    """The next message and those that follow `within_s`: otherwise each would be a transaction of its own."""
    messages = list[Msg]()
    with suppress(TimeoutError):  # the base of nats-py's own
        messages += await subscription.fetch(1, timeout=EMPTY_S)
        await pause(within_s)
        messages += await subscription.fetch(MAX_BATCH - 1, timeout=REST_S)
    return messages


async def _record(monitored: MonitoredStream, messages: Sequence[Msg], engine: AsyncEngine) -> int:
    """Write a batch and settle it. Returns: the number of messages written."""
    readable = [(msg, row) for msg in messages if (row := await _read(monitored, msg)) is not None]
    if not readable:
        return 0
    try:
        await retry(partial(write_rows, monitored, engine, [row for _, row in readable]))
    except BadInput as error:
        if len(readable) > 1:  # write one at a time, to find it
            return sum([await _record(monitored, [msg], engine) for msg, _ in readable])
        await discard(readable[0][0], error)
        return 0
    await asyncio.gather(*(acknowledge(msg) for msg, _ in readable))
    return len(readable)


async def _read(monitored: MonitoredStream, msg: Msg) -> Row | None:
    """The row of a message; None if the message cannot be read and is discarded."""
    try:
        return monitored.row(decode(msg.data, monitored.kind))
    except BadInput as error:
        await discard(msg, error)
        return None


async def write_rows(monitored: MonitoredStream, engine: AsyncEngine, rows: Sequence[Row]) -> None:
    """Insert all rows or none; in a table that `replaces`, update existing rows with the values that are not null.

    Locks the rows in the order of their keys: writers of the same rows wait for each other, without a deadlock.

    Raises: BadInput if Postgres refuses a value; RetryLater if it is unavailable.
    """
    statement = insert(monitored.table)
    columns, keys = monitored.table.__table__.columns, [key.name for key in monitored.table.__table__.primary_key]
    if monitored.replaces:
        values = {name: func.coalesce(statement.excluded[name], columns[name]) for name in rows[0]}
        statement = statement.on_conflict_do_update(index_elements=keys, set_=values)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    with database_errors(), refused_rows():
        async with engine.begin() as connection:
            await connection.execute(statement, sorted(rows, key=itemgetter(*keys)))


async def expire_requests(engine: AsyncEngine, retention_s: float) -> None:
    """Delete the rows of requests that arrived more than `retention_s` seconds ago, again and again until cancelled."""
    while True:
        try:
            if rows := await expire_now(engine, retention_s):
                log.info("old requests deleted from Postgres", rows=rows)
        except RetryLater as error:
            log.warning("old requests not deleted from Postgres", error=str(error))
        await pause(EXPIRY_INTERVAL_S)


async def expire_now(engine: AsyncEngine, retention_s: float) -> int:
    """Delete the rows that are old now, but none that others have locked. Returns: their number. Raises: RetryLater."""
    row, oldest, rows = RequestRow, func.now() - timedelta(seconds=retention_s), 0
    old = select(row.request_id).where(row.arrived_at < oldest).order_by(row.arrived_at).limit(MAX_EXPIRED_ROWS)
    statement = delete(row).where(row.request_id.in_(old.with_for_update(skip_locked=True)))
    while True:
        with database_errors():
            async with engine.begin() as connection:
                deleted = (await connection.execute(statement)).rowcount
        if not deleted:
            return rows
        rows += deleted
        await pause(EXPIRY_PAUSE_S)
