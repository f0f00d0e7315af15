"""The workload monitor: every outcome on the bus becomes one row in Postgres.

Postgres may be away: serving goes on, the outcomes stay in their stream (for OUTCOME_AGE_S; older ones are lost to
the statistics) and are written when it is back. Messages are acknowledged after their rows are committed, and
writing a row twice changes nothing, so each outcome counts exactly once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from shared.bus import Bus
from shared.codec import decode
from shared.database import RequestRow, request_values, upgrade
from shared.errors import BadInput, RetryLater
from shared.messages.requests import Outcome
from shared.subjects import outcome_consumer

log = structlog.get_logger(__name__)

BATCH = 500  # rows a transaction
IDLE_S = 0.5  # how long a batch may take to fill; so also how old a row may be
RETRY_S = (0.2, 5.0)  # first and longest wait while the bus or the database is away

Row = dict[str, Any]


async def monitor(bus: Bus, engine: AsyncEngine, stop: asyncio.Event) -> None:
    """Write outcomes until `stop` is set. Brings the database's tables up to date first."""
    await eventually(partial(upgrade, engine), stop)
    while not stop.is_set():
        await eventually(partial(record_outcomes, bus, engine, stop), stop)


async def record_outcomes(bus: Bus, engine: AsyncEngine, stop: asyncio.Event) -> None:
    """Raises: RetryLater when the bus does not answer."""
    stream = bus.subjects.stream("OUTCOMES")
    subscription = None
    try:
        await bus.js.add_consumer(stream, outcome_consumer(bus.subjects))
        subscription = await bus.js.pull_subscribe_bind(outcome_consumer(bus.subjects).durable_name, stream)
        while not stop.is_set():
            await _record(await _next_batch(subscription), engine, stop)
    except (nats.errors.Error, APIError, TimeoutError) as error:
        raise RetryLater(f"the bus does not answer: {error!r}") from error
    finally:
        if subscription and not bus.nc.is_closed:
            await subscription.unsubscribe()


async def write_rows(engine: AsyncEngine, rows: Sequence[Row]) -> None:
    """Insert or replace rows, all or none.

    Raises: BadInput if Postgres cannot hold a value; RetryLater if it is away.
    """
    statement = insert(RequestRow)
    replaced = {column.name: statement.excluded[column.name] for column in RequestRow.__table__.columns}
    try:
        async with engine.begin() as connection:
            await connection.execute(
                statement.on_conflict_do_update(index_elements=["request_id"], set_=replaced), rows
            )
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


async def _record(messages: Sequence[Msg], engine: AsyncEngine, stop: asyncio.Event) -> None:
    """Write a batch and settle it. Interrupted by `stop`, it is delivered again to the next monitor."""
    readable = [(msg, row) for msg in messages if (row := await _read(msg)) is not None]
    if not readable:
        return
    try:
        if await eventually(partial(write_rows, engine, [row for _, row in readable]), stop):
            await asyncio.gather(*(msg.ack() for msg, _ in readable))
    except BadInput as error:
        if len(readable) == 1:
            await _bury(readable[0][0], error)
            return
        for msg, _ in readable:  # one at a time, to find it
            await _record([msg], engine, stop)


async def _read(msg: Msg) -> Row | None:
    """The row of an outcome; None if there is none in the message, which is then buried."""
    try:
        return request_values(decode(msg.data, Outcome))
    except BadInput as error:
        await _bury(msg, error)
        return None


async def _bury(msg: Msg, error: BadInput) -> None:
    log.warning("unreadable outcome buried", subject=msg.subject, error=error.message)
    await msg.term()


def _is_about_values(error: Exception) -> bool:
    """Whether Postgres refuses a value: SQLSTATE classes 22, data exception, and 23, integrity violation."""
    return isinstance(error, DBAPIError) and str(getattr(error.orig, "sqlstate", "")).startswith(("22", "23"))


def _reason(error: BaseException) -> str:
    """One line: the driver's own words where there are some."""
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split()) or type(error).__name__
