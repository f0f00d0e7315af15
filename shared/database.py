"""The database: its tables as SQLAlchemy models, and bringing a database up to them.

Postgres holds the workload's history: one row a finished request, written by the workload monitor.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, DateTime, MetaData, Text, make_url, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shared.errors import BadInput
from shared.messages.requests import Outcome

MIGRATIONS = Path(__file__).with_name("migrations")
MIGRATION_LOCK = 0x64694C61  # an advisory lock of Postgres: one process migrates at a time
CONNECT_S = 5.0


class Base(DeclarativeBase):
    """Names every constraint and index, so that migrations can change them."""

    metadata = MetaData(
        naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(column_0_label)s", "uq": "uq_%(column_0_label)s"}
    )


class RequestRow(Base):
    """How one request ended. Columns that only a served request has are NULL for others."""

    __tablename__ = "requests"

    request_id: Mapped[str] = mapped_column(Text, primary_key=True)
    status: Mapped[str] = mapped_column(Text)  # an OutcomeStatus
    arrived_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    output_tokens: Mapped[int]  # asked for, in whole blocks
    slo_s: Mapped[float | None]
    latency_s: Mapped[float | None]
    slo_met: Mapped[bool | None]
    steps: Mapped[int | None]
    recompute_steps: Mapped[int | None]
    mean_threshold: Mapped[float | None]
    min_threshold: Mapped[float | None]
    instances: Mapped[list[str]] = mapped_column(ARRAY(Text))  # in the order of first use
    migrations: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)


def request_values(outcome: Outcome) -> dict[str, Any]:
    """The columns of an outcome's row. Raises: BadInput if its arrival time is none."""
    try:
        arrived_at = datetime.fromtimestamp(outcome.arrival_s, UTC)
    except (ValueError, OverflowError, OSError):
        raise BadInput(f"arrival_s {outcome.arrival_s} is not a time", "arrival_s") from None
    stats = outcome.stats
    return {
        "request_id": outcome.request_id,
        "status": outcome.status.value,
        "arrived_at": arrived_at,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "output_tokens": outcome.output_tokens,
        "slo_s": stats and stats.slo_s,
        "latency_s": stats and stats.latency_s,
        "slo_met": stats and stats.slo_met,
        "steps": stats and stats.steps,
        "recompute_steps": stats and stats.recompute_steps,
        "mean_threshold": stats and stats.mean_threshold,
        "min_threshold": stats and stats.min_threshold,
        "instances": stats.instances if stats else [],
        "migrations": stats and stats.migrations,
        "error": outcome.error.message if outcome.error else None,
    }


def open_database(url: str) -> AsyncEngine:
    """Connections to a `postgresql://` URL, made when first used. Raises: BadInput if it is no such URL."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.get_backend_name() != "postgresql":
        raise BadInput(f"not a database URL: {url}; accepted: postgresql://USER:PASSWORD@HOST:PORT/NAME")
    return create_async_engine(
        parsed.set(drivername="postgresql+asyncpg"), pool_pre_ping=True, connect_args={"timeout": CONNECT_S}
    )


async def database_answers(url: str) -> bool:
    """Whether the database can be used now. Raises: BadInput if the URL is none."""
    engine = open_database(url)
    try:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
    except (SQLAlchemyError, OSError, TimeoutError):
        return False
    finally:
        await engine.dispose()
    return True


async def upgrade(engine: AsyncEngine) -> None:
    """Run the migrations that the database lacks; safe for several processes at once."""
    async with engine.begin() as connection:
        await connection.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
