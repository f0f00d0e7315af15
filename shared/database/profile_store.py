"""Latency profiles in Postgres, by model and device.

All rows of a measurement are in `measured_latencies`. The version before also reads `latency_profiles`, which has one
row per kind and batch size, with the same time: it is written so that one can go back.
"""

from datetime import UTC, datetime

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from shared.database.errors import database_errors
from shared.database.schema import MeasuredLatencyRow, ProfileRow
from shared.messages.steps import StepKind
from shared.profile import MIXED, LatencyProfile, MeasuredLatency, RowKind, kind_name


async def save_profile(engine: AsyncEngine, model: str, device: str, profile: LatencyProfile) -> None:
    """Replace the stored profile of these TP degrees on a device, a name such as `NVIDIA H100 80GB HBM3`.

    Raises: RetryLater if Postgres is unavailable.
    """
    common = {"model": model, "device": device, "measured_at": datetime.now(UTC)}
    points = [
        common | {"tp": tp, "step_kind": kind.name.lower(), "batch_tokens": int(tokens), "latency_s": float(latency_s)}
        for (tp, kind), curve in profile.curves.items()
        for tokens, latency_s in zip(curve.batch_tokens, curve.latency_s, strict=True)
    ]
    rows = [
        common
        | {"tp": row.tp, "step_kind": kind_name(row.kind), "batch_tokens": row.batch_tokens, "latency_s": row.latency_s}
        | {"context_tokens": row.context_tokens, "recompute_tokens": row.recompute_tokens}
        for row in profile.rows
    ]
    with database_errors():
        async with engine.begin() as connection:
            for table, values in ((ProfileRow, points), (MeasuredLatencyRow, rows)):
                known = (table.model == model, table.device == device, table.tp.in_(profile.tp_degrees))
                await connection.execute(delete(table).where(*known))
                await connection.execute(insert(table), values)


async def load_profile(engine: AsyncEngine, model: str, device: str) -> LatencyProfile | None:
    """The profile of all measured TP degrees; None if there is none. Raises: RetryLater if Postgres is unavailable."""
    table = MeasuredLatencyRow
    query = select(table.__table__).where(table.model == model, table.device == device)
    with database_errors():
        async with engine.connect() as connection:
            found = (await connection.execute(query)).all()
    rows = [
        MeasuredLatency(
            row.tp, row.batch_tokens, _kind(row.step_kind), row.latency_s, row.context_tokens, row.recompute_tokens
        )
        for row in found
    ]
    return LatencyProfile.from_rows(rows) if rows else None


def _kind(name: str) -> RowKind:
    return MIXED if name == MIXED else StepKind[name.upper()]
