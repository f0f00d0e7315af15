"""Reads the requests of a window of time from Postgres."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.reconfigurator.monitoring.workload_stats import RequestSample
from shared.database.schema import RequestRow
from shared.errors import RetryLater
from shared.messages.requests import ThresholdUse


async def read_window(
    engine: AsyncEngine, start_s: float, end_s: float
) -> tuple[list[RequestSample], list[ThresholdUse]]:
    """The requests that arrived from `start_s` to `end_s`, Unix time, and the steps they took by threshold.

    Requests that were rejected count for nothing. Raises: RetryLater if Postgres is away.
    """
    row = RequestRow
    columns = (row.prompt_tokens, row.output_tokens, row.slo_s, row.unmasked_tokens)
    uses = (row.thresholds, row.threshold_steps, row.threshold_tokens)
    async with _connected(engine) as connection:
        found = (await connection.execute(select(*columns, *uses).where(_arrived(start_s, end_s)))).all()
    seen = [RequestSample(prompt, output, slo_s, unmasked) for prompt, output, slo_s, unmasked, *_ in found if slo_s]
    return seen, [
        ThresholdUse(threshold=threshold, steps=steps, tokens=tokens)
        for *_, at, of_steps, of_tokens in found
        for threshold, steps, tokens in zip(at or [], of_steps or [], of_tokens or [], strict=True)
    ]


async def count_arrivals(engine: AsyncEngine, start_s: float, end_s: float) -> int:
    """How many requests `read_window` would tell of. Raises: RetryLater if Postgres is away."""
    async with _connected(engine) as connection:
        return await connection.scalar(select(func.count()).where(_arrived(start_s, end_s))) or 0


def _arrived(start_s: float, end_s: float) -> ColumnElement[bool]:
    first, last = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, end_s))
    return RequestRow.arrived_at.between(first, last) & RequestRow.slo_s.is_not(None)


@asynccontextmanager
async def _connected(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    try:
        async with engine.connect() as connection:
            yield connection
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise RetryLater(f"Postgres is away: {error!r}") from error
