"""The Postgres tables as SQLAlchemy models, and their migrations.

The workload monitor writes the history: one row per request, one row per decision of the reconfigurator. Postgres also
holds the latency profiles and the API keys.
"""

from datetime import datetime
from inspect import signature
from pathlib import Path
from typing import Any

import asyncpg
import structlog
from sqlalchemy import URL, Connection, DateTime, Float, Integer, MetaData, Text, false, make_url, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shared.database.errors import DATABASE_ERRORS
from shared.database.tls import PARAMETERS, read_tls
from shared.errors import BadInput
from shared.urls import without_credentials

log = structlog.get_logger(__name__)

MIGRATIONS = Path(__file__).with_name("migrations")
MIGRATION_LOCK = 0x64694C61  # advisory lock: one process migrates at a time
CONNECT_S = 5.0
ACTIVE = "active"


class Base(DeclarativeBase):
    """Names every constraint and index, for migrations."""

    metadata = MetaData(
        naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(column_0_label)s", "uq": "uq_%(column_0_label)s"}
    )


class RequestRow(Base):
    """One request: its arrival, then its outcome. Columns of served requests are NULL for others."""

    __tablename__ = "requests"

    request_id: Mapped[str] = mapped_column(Text, primary_key=True)
    status: Mapped[str] = mapped_column(Text)  # ACTIVE until the outcome, then an OutcomeStatus
    arrived_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), index=True)
    request_class: Mapped[str | None] = mapped_column(Text)  # bucket of prompt and output length
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    output_tokens: Mapped[int]  # requested, in whole blocks
    slo_s: Mapped[float | None]
    latency_s: Mapped[float | None]
    slo_met: Mapped[bool | None]
    steps: Mapped[int | None]
    recompute_steps: Mapped[int | None]
    mean_threshold: Mapped[float | None]
    min_threshold: Mapped[float | None]
    unmasked_tokens: Mapped[int | None]
    thresholds: Mapped[list[float] | None] = mapped_column(ARRAY(Float))  # thresholds used
    threshold_steps: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))  # steps at each of them
    threshold_tokens: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))  # tokens unmasked at each of them
    instances: Mapped[list[str]] = mapped_column(ARRAY(Text))  # in order of first use
    migrations: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)


class PlanRow(Base):
    """One decision of the reconfigurator; see PlanRecord."""

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
    inputs: Mapped[dict[str, Any]] = mapped_column(JSONB)  # observed workload and running instances
    target: Mapped[list[Any]] = mapped_column(JSONB)  # planned instances
    events: Mapped[list[Any]] = mapped_column(JSONB)  # executed actions


class ProfileRow(Base):
    """One point of the latency profile of a model on a device, which only the version before reads."""

    __tablename__ = "latency_profiles"

    model: Mapped[str] = mapped_column(Text, primary_key=True)
    device: Mapped[str] = mapped_column(Text, primary_key=True)  # GPU type, or cpu
    tp: Mapped[int] = mapped_column(primary_key=True)
    step_kind: Mapped[str] = mapped_column(Text, primary_key=True)  # recompute or cache
    batch_tokens: Mapped[int] = mapped_column(primary_key=True)
    latency_s: Mapped[float]
    measured_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class MeasuredLatencyRow(Base):
    """One row of a latency profile, with its context and, if it is mixed, its recompute tokens."""

    __tablename__ = "measured_latencies"

    model: Mapped[str] = mapped_column(Text, primary_key=True)
    device: Mapped[str] = mapped_column(Text, primary_key=True)
    tp: Mapped[int] = mapped_column(primary_key=True)
    step_kind: Mapped[str] = mapped_column(Text, primary_key=True)  # recompute, cache or mixed
    batch_tokens: Mapped[int] = mapped_column(primary_key=True)
    context_tokens: Mapped[int] = mapped_column(primary_key=True)  # 0: not known
    recompute_tokens: Mapped[int] = mapped_column(primary_key=True)  # 0: not mixed
    latency_s: Mapped[float]
    measured_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class ApiKeyRow(Base):
    """One API key, with the SHA-256 of its secret."""

    __tablename__ = "api_keys"

    key_id: Mapped[str] = mapped_column(Text, primary_key=True)
    secret_hash: Mapped[str] = mapped_column(Text, unique=True)
    name: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    revoked_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    requests_per_minute: Mapped[int | None]  # None: no limit
    concurrency: Mapped[int | None]  # requests in flight; None: no limit
    max_priority: Mapped[int]  # highest priority that its requests may have
    operator: Mapped[bool] = mapped_column(server_default=false())  # sees the requests of all keys
    stores_responses: Mapped[bool] = mapped_column(server_default=false())  # keeps the conversations of its responses


def open_database(url: str) -> AsyncEngine:
    """An engine for a `postgresql://` URL; it connects on first use. Raises: BadInput if the URL is invalid."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        parsed = None
    if parsed is None or parsed.get_backend_name() != "postgresql" or _has_rest_of_password(parsed):
        raise BadInput(
            f"not a database URL: {without_credentials(url)}; accepted: postgresql://USER:PASSWORD@HOST:PORT/NAME, "
            "with %40 for @ in the password"
        )
    tls, parsed = read_tls(parsed.query), parsed.difference_update_query(PARAMETERS)
    if unknown := parsed.query.keys() - signature(asyncpg.connect).parameters.keys():
        raise BadInput(
            f"unknown parameter {min(unknown)} in the database URL; for TLS use ?sslmode=verify-full&sslrootcert=FILE"
        )
    arguments = {"timeout": CONNECT_S} | ({} if tls is None else {"ssl": tls})
    return create_async_engine(parsed.set(drivername="postgresql+asyncpg"), pool_pre_ping=True, connect_args=arguments)


def _has_rest_of_password(url: URL) -> bool:
    """Whether the password had an @, so that the parts after it are wrong. A directory of the socket may have one."""
    options = {**url.query, "host": ""}
    return any("@" in str(part) for part in (url.host, url.database, *options, *options.values()))


async def database_answers(url: str) -> bool:
    """Whether the database answers. Raises: BadInput if the URL is invalid."""
    engine = open_database(url)
    try:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
    except DATABASE_ERRORS:
        return False
    finally:
        await engine.dispose()
    return True


async def upgrade(engine: AsyncEngine) -> None:
    """Run the missing migrations; safe for several processes at once.

    A database that a newer version has migrated is left unchanged: migrations keep what older versions use.
    """
    async with engine.begin() as connection:
        await connection.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    # Imported here because they are slow to import, and only migrations need them.
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
        log.warning("a newer version has migrated the database; left unchanged", migrations=sorted(newer))
        return
    command.upgrade(config, "head")
