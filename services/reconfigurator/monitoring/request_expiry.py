"""Deletes the rows of old requests from Postgres, in transactions of bounded length."""

from datetime import timedelta

import structlog
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from shared.database.errors import database_errors
from shared.database.schema import RequestRow
from shared.errors import RetryLater
from shared.tasks import pause

log = structlog.get_logger(__name__)

MAX_ROWS = 1000  # rows per transaction
PAUSE_S = 0.1  # between two transactions, for the work of others
INTERVAL_S = 600.0  # from the last old row to the next search


async def expire_requests(engine: AsyncEngine, retention_s: float) -> None:
    """Delete the rows of requests that arrived more than `retention_s` seconds ago, again and again until cancelled."""
    while True:
        try:
            if rows := await expire_now(engine, retention_s):
                log.info("old requests deleted from Postgres", rows=rows)
        except RetryLater as error:
            log.warning("old requests not deleted from Postgres", error=str(error))
        await pause(INTERVAL_S)


async def expire_now(engine: AsyncEngine, retention_s: float) -> int:
    """Delete all rows that are old now, at most MAX_ROWS in a transaction, and none that another one has locked.

    Returns: their number. Raises: RetryLater if Postgres is unavailable.
    """
    row, oldest, rows = RequestRow, func.now() - timedelta(seconds=retention_s), 0
    old = select(row.request_id).where(row.arrived_at < oldest).order_by(row.arrived_at).limit(MAX_ROWS)
    statement = delete(row).where(row.request_id.in_(old.with_for_update(skip_locked=True)))
    while True:
        with database_errors():
            async with engine.begin() as connection:
                deleted = (await connection.execute(statement)).rowcount
        if not deleted:
            return rows
        rows += deleted
        await pause(PAUSE_S)
