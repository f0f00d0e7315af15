"""Latency profiles in Postgres, by model and device."""

from datetime import UTC, datetime

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from shared.database.schema import ProfileRow
from shared.errors import RetryLater
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile


async def save_profile(engine: AsyncEngine, model: str, device: str, profile: LatencyProfile) -> None:
    """Replace the stored profile of these TP degrees on a device, a name such as `NVIDIA H100 80GB HBM3`."""
    common = {"model": model, "device": device, "measured_at": datetime.now(UTC)}
    rows = [
        common | {"tp": tp, "step_kind": kind.name.lower(), "batch_tokens": int(tokens), "latency_s": float(latency_s)}
        for (tp, kind), curve in profile.curves.items()
        for tokens, latency_s in zip(curve.batch_tokens, curve.latency_s, strict=True)
    ]
    known = (ProfileRow.model == model, ProfileRow.device == device, ProfileRow.tp.in_(profile.tp_degrees))
    async with engine.begin() as connection:
        await connection.execute(delete(ProfileRow).where(*known))
        await connection.execute(insert(ProfileRow), rows)


async def load_profile(engine: AsyncEngine, model: str, device: str) -> LatencyProfile | None:
    """The profile of all measured TP degrees; None if there is none. Raises: RetryLater if Postgres is unavailable."""
    columns = (ProfileRow.tp, ProfileRow.batch_tokens, ProfileRow.step_kind, ProfileRow.latency_s)
    query = select(*columns).where(ProfileRow.model == model, ProfileRow.device == device)
    try:
        async with engine.connect() as connection:
            stored = (await connection.execute(query)).all()
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise RetryLater(f"Postgres is unavailable: {error!r}") from error
    rows = [(tp, tokens, StepKind[kind.upper()], latency_s) for tp, tokens, kind, latency_s in stored]
    return LatencyProfile.from_rows(rows) if rows else None
