"""The database: its tables as SQLAlchemy models, and bringing a database up to them.

Postgres holds the workload's history, one row a request, and the reconfigurator's, one row a decision; the workload
monitor writes both. It also holds the API keys.
"""

from datetime import datetime
from inspect import signature
from pathlib import Path
from typing import Any

import asyncpg
import structlog
from sqlalchemy import Connection, DateTime, Float, Integer, MetaData, Text, make_url, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shared.errors import BadInput

log = structlog.get_logger(__name__)

MIGRATIONS = Path(__file__).with_name("migrations")
MIGRATION_LOCK = 0x64694C61  # an advisory lock of Postgres: one process migrates at a time
CONNECT_S = 5.0
ACTIVE = "active"


class Base(DeclarativeBase):
    """Names every constraint and index, so that migrations can change them."""

    metadata = MetaData(
        naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(column_0_label)s", "uq": "uq_%(column_0_label)s"}
    )


class RequestRow(Base):
    """One request: its arrival, then how it ended. Columns that only a served request has are NULL for others."""

    __tablename__ = "requests"

    request_id: Mapped[str] = mapped_column(Text, primary_key=True)
    status: Mapped[str] = mapped_column(Text)  # ACTIVE until it has ended, then an OutcomeStatus
    arrived_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)
    request_class: Mapped[str | None] = mapped_column(Text)  # bucket of prompt and output length
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
    unmasked_tokens: Mapped[int | None]
    thresholds: Mapped[list[float] | None] = mapped_column(ARRAY(Float))  # those used; and at each of them
    threshold_steps: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))  # the steps that ran
    threshold_tokens: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))  # the tokens they unmasked
    instances: Mapped[list[str]] = mapped_column(ARRAY(Text))  # in the order of first use
    migrations: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)


class PlanRow(Base):
    """One decision of the reconfigurator, taken or not; see PlanRecord."""

    __tablename__ = "plans"

    plan_id: Mapped[str] = mapped_column(Text, primary_key=True)
    decided_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)
    ended_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    state: Mapped[str] = mapped_column(Text)  # a PlanState
    reason: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text)
    mean_threshold: Mapped[float | None]
    slack_s: Mapped[float | None]
    solve_s: Mapped[float | None]
    inputs: Mapped[dict[str, Any]] = mapped_column(JSONB)  # the workload as it was seen, and what ran
    target: Mapped[list[Any]] = mapped_column(JSONB)  # what is to run
    events: Mapped[list[Any]] = mapped_column(JSONB)  # what was done


class ProfileRow(Base):
    """One point of a latency profile, of a model on a device."""

    __tablename__ = "latency_profiles"

    model: Mapped[str] = mapped_column(Text, primary_key=True)
    device: Mapped[str] = mapped_column(Text, primary_key=True)  # the GPU's type, or cpu
    tp: Mapped[int] = mapped_column(primary_key=True)
    step_kind: Mapped[str] = mapped_column(Text, primary_key=True)  # recompute or cache
    batch_tokens: Mapped[int] = mapped_column(primary_key=True)
    latency_s: Mapped[float]
    measured_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class ApiKeyRow(Base):
    """One API key; its secret is not kept, only that secret's SHA-256."""

    __tablename__ = "api_keys"

    key_id: Mapped[str] = mapped_column(Text, primary_key=True)
    secret_hash: Mapped[str] = mapped_column(Text, unique=True)
    name: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    revoked_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    requests_per_minute: Mapped[int | None]  # None: no limit
    concurrency: Mapped[int | None]  # requests at a time; None: no limit
    max_priority: Mapped[int]  # the highest that its requests may ask for


def open_database(url: str) -> AsyncEngine:
    """Connections to a `postgresql://` URL, made when first used. Raises: BadInput if it is no such URL."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        parsed = None
    if parsed is None or parsed.get_backend_name() != "postgresql":
        raise BadInput(f"not a database URL: {url}; accepted: postgresql://USER:PASSWORD@HOST:PORT/NAME")
    if unknown := parsed.query.keys() - signature(asyncpg.connect).parameters.keys():
        raise BadInput(
            f"the database's URL has {min(unknown)}=, which is not known; TLS is asked for with ?ssl=require"
        )
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
    """Run the migrations that the database lacks; safe for several processes at once.

    A database that a newer version has migrated is left as it is: migrations leave what older ones use.
    """
    async with engine.begin() as connection:
        await connection.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    # Slow to import, and who only asks whether the database answers needs none of it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()}
    if newer := set(MigrationContext.configure(connection).get_current_heads()) - known:
        log.warning("the database is of a newer version; left as it is", migrations=sorted(newer))
        return
    command.upgrade(config, "head")
