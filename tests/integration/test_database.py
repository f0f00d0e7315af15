"""Tables, migrations and the workload monitor on a real Postgres and a real bus."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from nats.js.errors import NotFoundError
from sqlalchemy import Connection, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.monitor import monitor
from shared.bus import Bus
from shared.database import Base, RequestRow, open_database, upgrade
from shared.errors import BadInput
from shared.messages.requests import Outcome, OutcomeError, OutcomeStatus, ServingStats
from tests.support.postgres import PostgresServer
from tests.support.stack import new_data_dir
from tests.support.waiting import until

WAIT_S = 20.0

SERVED = Outcome(
    request_id="served",
    status=OutcomeStatus.COMPLETED,
    text="29",
    prompt_tokens=12,
    completion_tokens=7,
    output_tokens=32,
    arrival_s=1_800_000_000.25,
    stats=ServingStats(
        steps=9,
        recompute_steps=9,
        mean_threshold=0.9,
        min_threshold=0.9,
        slo_s=5.0,
        latency_s=1.5,
        slo_met=True,
        instances=["worker-0-abc"],
        migrations=0,
    ),
)


def rejected(number: int) -> Outcome:
    return Outcome(
        request_id=f"r{number}",
        status=OutcomeStatus.REJECTED,
        arrival_s=1_800_000_000.0,
        error=OutcomeError(message="prompt must not be empty", field="prompt"),
    )


@pytest.fixture(scope="module")
def postgres_dir() -> Iterator[Path]:
    with new_data_dir() as data_dir:
        yield data_dir / "postgres"


@pytest.fixture
async def postgres(postgres_dir: Path) -> AsyncIterator[PostgresServer]:
    server = PostgresServer(postgres_dir)
    await server.start()
    yield server
    server.stop()


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[AsyncEngine]:
    """Connections to an empty database."""
    engine = open_database(postgres.url)
    async with engine.begin() as connection:
        await connection.execute(text("DROP SCHEMA public CASCADE"))
        await connection.execute(text("CREATE SCHEMA public"))
    yield engine
    await engine.dispose()


@asynccontextmanager
async def monitoring(bus: Bus, database: AsyncEngine) -> AsyncIterator[None]:
    """A monitor at work; should it fail, so does the test."""
    stop = asyncio.Event()
    async with asyncio.timeout(2 * WAIT_S), asyncio.TaskGroup() as group:
        group.create_task(monitor(bus, database, stop))
        yield
        stop.set()


async def store(bus: Bus, *outcomes: Outcome) -> None:
    for outcome in outcomes:
        await bus.store(bus.subjects.outcomes(outcome.request_id), outcome)


async def all_settled(bus: Bus) -> None:
    """Until the monitor has acknowledged or buried everything in the stream."""

    async def settled() -> bool:
        try:
            info = await bus.js.consumer_info(bus.subjects.stream("OUTCOMES"), "monitor")
        except NotFoundError:  # the monitor has not begun
            return False
        return not info.num_pending and not info.num_ack_pending

    await until(settled, WAIT_S)


async def count_rows(database: AsyncEngine) -> int:
    async with database.connect() as connection:
        return (await connection.execute(select(func.count()).select_from(RequestRow))).scalar_one()


async def test_migrations_lead_to_the_models(database: AsyncEngine) -> None:
    await upgrade(database)

    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), Base.metadata))

    async with database.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_processes_that_start_together_migrate_once(database: AsyncEngine) -> None:
    await asyncio.gather(*(upgrade(database) for _ in range(4)))
    assert await count_rows(database) == 0


@pytest.mark.parametrize("url", ["", "sqlite:///x", "http://127.0.0.1"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="not a database URL"):
        open_database(url)


async def test_an_outcome_becomes_its_row(bus: Bus, database: AsyncEngine) -> None:
    await store(bus, SERVED, rejected(1))
    async with monitoring(bus, database):
        await all_settled(bus)
    async with database.connect() as connection:
        served, refused = (await connection.execute(select(RequestRow).order_by(RequestRow.status))).all()
    assert served.arrived_at == datetime.fromtimestamp(1_800_000_000.25, UTC)
    assert (served.steps, served.latency_s, served.slo_met, served.instances) == (9, 1.5, True, ["worker-0-abc"])
    assert (refused.status, refused.steps, refused.error) == ("rejected", None, "prompt must not be empty")


async def test_each_outcome_is_one_row_though_postgres_goes_away_in_between(
    bus: Bus, database: AsyncEngine, postgres: PostgresServer
) -> None:
    async with monitoring(bus, database):
        await store(bus, *(rejected(number) for number in range(100)))
        await all_settled(bus)
        postgres.stop()
        await store(bus, *(rejected(number) for number in range(50, 200)))
        await postgres.start()
        await all_settled(bus)
    assert await count_rows(database) == 200


async def test_an_outcome_written_twice_counts_once(bus: Bus, database: AsyncEngine) -> None:
    async with monitoring(bus, database):
        await store(bus, SERVED)
        await all_settled(bus)
        await bus.js.delete_consumer(bus.subjects.stream("OUTCOMES"), "monitor")  # all is delivered again
    async with monitoring(bus, database):
        await all_settled(bus)
    assert await count_rows(database) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\x00 not a message",
        b'{"request_id": "bad", "status": "completed", "prompt_tokens": 99999999999}',
        b'{"request_id": "bad", "status": "completed", "arrival_s": 1e300}',
        b'{"request_id": "b\\u0000d", "status": "completed"}',
    ],
)
async def test_what_is_no_outcome_is_buried_and_the_others_are_written(
    bus: Bus, database: AsyncEngine, garbage: bytes
) -> None:
    await store(bus, rejected(1))
    await bus.js.publish(bus.subjects.outcomes("bad"), garbage)
    await store(bus, rejected(2))
    async with monitoring(bus, database):
        await all_settled(bus)
    assert await count_rows(database) == 2
