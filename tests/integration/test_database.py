"""Tables, migrations and the workload monitor on a real Postgres and a real bus."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from nats.js.errors import NotFoundError
from sqlalchemy import Connection, event, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.__main__ import prepare
from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring import workload_monitor
from services.reconfigurator.monitoring.database_rows import arrival_row, outcome_row
from services.reconfigurator.monitoring.recent_workload import count_arrivals, read_window
from services.reconfigurator.monitoring.workload_monitor import MONITORED_STREAMS, check_written, monitor, write_rows
from services.reconfigurator.planning.workload_stats import RequestSample
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus
from shared.database.schema import Base, PlanRow, RequestRow, upgrade
from shared.errors import RetryLater
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanRecord, PlanState
from shared.messages.requests import Arrival, Outcome, OutcomeError, OutcomeStatus, ThresholdUse
from shared.service import run_service
from shared.tasks import during
from tests.builders import serving_stats
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually, until

WAIT_S = 20.0
HOUR_S = 3600.0
RETENTION_S = 30 * 24 * HOUR_S

SERVED = Outcome(
    request_id="served",
    status=OutcomeStatus.COMPLETED,
    text="29",
    prompt_tokens=12,
    completion_tokens=7,
    output_tokens=32,
    arrival_s=1_800_000_000.25,
    stats=serving_stats(
        steps=9,
        recompute_steps=9,
        latency_s=1.5,
        instances=["worker-0-abc"],
        unmasked_tokens=32,
        thresholds=[ThresholdUse(threshold=0.8, steps=4, tokens=20), ThresholdUse(threshold=0.9, steps=5, tokens=12)],
    ),
)
ARRIVED = Arrival(request_id="served", arrival_s=SERVED.arrival_s, prompt_tokens=12, output_tokens=32, slo_s=5.0)
PLANNED = PlanRecord(
    plan_id="20270115-1",
    decided_s=1_800_000_000.0,
    state=PlanState.RUNNING,
    reason="the current instances cannot meet every SLO; the proposal can",
    status="optimal",
    mean_threshold=0.9,
    tokens_per_step={0.9: 2.5},
    before=[InstanceSpec(node="a", gpus=(0, 1))],
    target=[InstanceSpec(node="a", gpus=(0,)), InstanceSpec(node="a", gpus=(1,))],
)


def rejected(number: int) -> Outcome:
    return Outcome(
        request_id=f"r{number}",
        status=OutcomeStatus.REJECTED,
        arrival_s=1_800_000_000.0,
        error=OutcomeError(message="prompt must not be empty", field="prompt"),
    )


@asynccontextmanager
async def refusing_tables(database: AsyncEngine) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Postgres refuses to create tables, as an integrity violation. Yields whether it has refused twice."""
    for statement in (
        "CREATE SEQUENCE refusals",
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql"
        " AS $$ BEGIN PERFORM nextval('refusals'); RAISE unique_violation; END $$",
        "CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()",
    ):
        async with database.begin() as connection:
            await connection.execute(text(statement))

    async def refused_twice() -> bool:
        async with database.connect() as connection:
            return (await connection.scalar(text("SELECT last_value FROM refusals")) or 0) >= 2

    yield refused_twice
    async with database.begin() as connection:
        await connection.execute(text("DROP EVENT TRIGGER refuse"))


@asynccontextmanager
async def monitoring(bus: Bus, database: AsyncEngine) -> AsyncIterator[None]:
    """A running monitor; its failure fails the test."""
    async with asyncio.timeout(2 * WAIT_S), during(monitor(bus, database, ReconfiguratorMetrics(), RETENTION_S)):
        yield


async def store(bus: Bus, *outcomes: Outcome) -> None:
    for outcome in outcomes:
        await bus.store(bus.subjects.outcomes(outcome.request_id), outcome)


async def all_settled(bus: Bus) -> None:
    """Wait until the monitor has acknowledged or discarded all messages."""

    async def settled(stream: str) -> bool:
        last = (await bus.js.stream_info(stream)).state.last_seq
        try:
            floor = (await bus.js.consumer_info(stream, "monitor")).ack_floor
        except NotFoundError:  # the monitor has not begun
            return False
        # the counts of pending messages are 0 for a moment while the server creates a consumer
        return floor is not None and floor.stream_seq == last

    for feed in MONITORED_STREAMS:
        await until(partial(settled, bus.subjects.stream(feed.stream)), WAIT_S)


async def count_rows(database: AsyncEngine) -> int:
    async with database.connect() as connection:
        return (await connection.execute(select(func.count()).select_from(RequestRow))).scalar_one()


async def test_migrations_create_the_tables_of_the_models(database: AsyncEngine) -> None:
    await upgrade(database)

    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), Base.metadata))

    async with database.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_concurrent_processes_migrate_once(database: AsyncEngine) -> None:
    await asyncio.gather(*(upgrade(database) for _ in range(4)))
    assert await count_rows(database) == 0


async def test_a_database_migrated_by_a_newer_version_is_left_unchanged(database: AsyncEngine) -> None:
    await upgrade(database)
    async with database.begin() as connection:
        await connection.execute(text("ALTER TABLE requests ADD COLUMN added_later text"))
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await upgrade(database)
    async with database.connect() as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar_one() == "9999"
    assert await count_rows(database) == 0


async def test_a_migration_that_postgres_refuses_is_tried_again(bus: Bus, database: AsyncEngine) -> None:
    await store(bus, SERVED)
    async with refusing_tables(database) as refused_twice, monitoring(bus, database):
        await until(refused_twice, WAIT_S)
        async with database.begin() as connection:
            await connection.execute(text("ALTER EVENT TRIGGER refuse DISABLE"))
        await all_settled(bus)
        assert await count_rows(database) == 1


async def test_a_window_is_complete_once_its_arrivals_are_written(bus: Bus, database: AsyncEngine) -> None:
    with pytest.raises(RetryLater, match="the state of the workload monitor"):
        await check_written(bus, time.time())
    async with monitoring(bus, database):
        await all_settled(bus)
        await check_written(bus, time.time())
    await bus.store(bus.subjects.arrivals, ARRIVED)
    await check_written(bus, ARRIVED.arrival_s - 1.0)
    with pytest.raises(RetryLater, match="has yet to write arrivals"):
        await check_written(bus, ARRIVED.arrival_s)
    async with monitoring(bus, database):
        await all_settled(bus)
        await check_written(bus, ARRIVED.arrival_s)


async def test_outcomes_that_follow_one_another_share_transactions(bus: Bus, database: AsyncEngine) -> None:
    started_s = time.monotonic()
    async with monitoring(bus, database):
        for number in range(40):
            await store(bus, rejected(number))
            await asyncio.sleep(0.03)  # longer than a transaction takes
        await all_settled(bus)
    assert await count_rows(database) == 40
    async with database.connect() as connection:
        statement = text("SELECT count(DISTINCT xmin::text) FROM requests")
        transactions = (await connection.execute(statement)).scalar_one()
    assert transactions <= 2 + (time.monotonic() - started_s) / workload_monitor.BATCH_S


async def test_a_request_has_a_row_from_its_arrival_on(bus: Bus, database: AsyncEngine) -> None:
    waiting = msgspec.structs.replace(ARRIVED, request_id="waiting")
    await store(bus, SERVED)
    for arrival in (ARRIVED, waiting):
        await bus.store(bus.subjects.arrivals, arrival)
    async with monitoring(bus, database):
        await all_settled(bus)
    async with database.connect() as connection:
        served, active = (await connection.execute(select(RequestRow).order_by(RequestRow.request_id))).all()
    assert (served.status, served.thresholds, served.threshold_steps) == ("completed", [0.8, 0.9], [4, 5])
    assert (active.status, active.request_class, active.slo_s) == ("active", "p128-o64", 5.0)
    samples, uses = await read_window(database, ARRIVED.arrival_s - 1, ARRIVED.arrival_s)
    assert sorted(samples, key=repr) == [RequestSample(12, 32, 5.0, 32), RequestSample(12, 32, 5.0, None)]
    assert uses == SERVED.stats.thresholds if SERVED.stats else False
    assert await count_arrivals(database, ARRIVED.arrival_s - 1, ARRIVED.arrival_s) == 2
    assert await read_window(database, ARRIVED.arrival_s + 1, ARRIVED.arrival_s + 2) == ([], [])
    assert await count_arrivals(database, ARRIVED.arrival_s + 1, ARRIVED.arrival_s + 2) == 0


async def test_a_plan_and_a_request_cancelled_before_its_first_step_have_one_row(
    bus: Bus, database: AsyncEngine
) -> None:
    """The plan with its last state, the request with the data of its arrival."""
    await bus.store(bus.subjects.arrivals, ARRIVED)
    async with monitoring(bus, database):
        for state in (PlanState.RUNNING, PlanState.DONE):
            record = msgspec.structs.replace(PLANNED, state=state)
            await bus.store(bus.subjects.plans(record.plan_id), record)
            await all_settled(bus)
        await store(bus, msgspec.structs.replace(SERVED, status=OutcomeStatus.CANCELLED, stats=None))
        await all_settled(bus)
    async with database.connect() as connection:
        [plan] = (await connection.execute(select(PlanRow))).all()
    assert (plan.state, plan.target) == ("done", [{"node": "a", "gpus": [0]}, {"node": "a", "gpus": [1]}])
    assert plan.inputs["tokens_per_step"] == {"0.9": 2.5}
    samples, _ = await read_window(database, ARRIVED.arrival_s - 1, ARRIVED.arrival_s + 1)
    assert [request.slo_s for request in samples] == [5.0]


async def test_each_message_is_one_row_despite_a_postgres_restart(
    bus: Bus, database: AsyncEngine, postgres_server: PostgresServer
) -> None:
    async with monitoring(bus, database):
        await store(bus, *(rejected(number) for number in range(100)))
        await all_settled(bus)
        postgres_server.stop()
        await store(bus, *(rejected(number) for number in range(50, 200)))
        await bus.store(bus.subjects.arrivals, ARRIVED)
        await bus.store(bus.subjects.plans(PLANNED.plan_id), PLANNED)
        await postgres_server.start()
        await all_settled(bus)
    assert await count_rows(database) == 201
    async with database.connect() as connection:
        assert (await connection.execute(select(PlanRow.plan_id))).scalars().all() == [PLANNED.plan_id]


async def test_invalid_messages_are_discarded_and_the_others_are_stored(bus: Bus, database: AsyncEngine) -> None:
    await store(bus, SERVED)
    for subject, garbage in {
        "a": b"\xff\x00 not a message",
        "b": b'{"request_id": "bad", "status": "completed", "prompt_tokens": 99999999999}',
        "c": b'{"request_id": "bad", "status": "completed", "arrival_s": 1e300}',
        "d": b'{"request_id": "b\\u0000d", "status": "completed"}',
    }.items():
        await bus.js.publish(bus.subjects.outcomes(subject), garbage)
    await store(bus, rejected(1))
    async with monitoring(bus, database):
        await all_settled(bus)
    async with database.connect() as connection:
        served, refused = (await connection.execute(select(RequestRow).order_by(RequestRow.status))).all()
    assert served.arrived_at == datetime.fromtimestamp(1_800_000_000.25, UTC)
    assert (served.steps, served.latency_s, served.slo_met, served.instances) == (9, 1.5, True, ["worker-0-abc"])
    assert (refused.status, refused.steps, refused.error) == ("rejected", None, "prompt must not be empty")


async def add_requests(database: AsyncEngine, *ages_s: float) -> None:
    """Write the rows of requests that arrived this many seconds ago, with these numbers as ids."""
    arrivals = [
        msgspec.structs.replace(ARRIVED, request_id=f"{i}", arrival_s=time.time() - age_s)
        for i, age_s in enumerate(ages_s)
    ]
    await write_rows(MONITORED_STREAMS[0], database, [arrival_row(arrival) for arrival in arrivals])


async def ids(database: AsyncEngine) -> set[str]:
    async with database.connect() as connection:
        return set((await connection.execute(select(RequestRow.request_id))).scalars())


async def test_old_requests_are_deleted_a_bounded_number_at_a_time(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []

    async def look(_seconds: float) -> None:
        left.append(await ids(database))

    monkeypatch.setattr(workload_monitor, "MAX_EXPIRED_ROWS", 4)
    monkeypatch.setattr(workload_monitor, "pause", look)
    await upgrade(database)
    await add_requests(database, *(HOUR_S + 60.0 - i for i in range(10)), HOUR_S - 60.0, 0.0)
    assert await workload_monitor.expire_now(database, HOUR_S) == 10
    assert left == [{f"{i}" for i in range(first, 12)} for first in (4, 8, 10)]  # the oldest first


async def test_the_deletion_of_old_requests_waits_for_no_lock(database: AsyncEngine) -> None:
    await upgrade(database)
    await add_requests(database, 2 * HOUR_S, 2 * HOUR_S)
    async with database.begin() as other:
        await other.execute(text("SELECT 1 FROM requests WHERE request_id = '0' FOR UPDATE"))
        async with asyncio.timeout(WAIT_S):
            assert await workload_monitor.expire_now(database, HOUR_S) == 1
    assert await ids(database) == {"0"}
    assert await workload_monitor.expire_now(database, HOUR_S) == 1


async def test_the_monitor_deletes_old_requests(bus: Bus, database: AsyncEngine) -> None:
    await upgrade(database)
    await add_requests(database, 2 * RETENTION_S, 0.0)
    async with monitoring(bus, database):
        await eventually(lambda: ids(database), lambda found: found == {"1"}, WAIT_S)


def test_requests_are_kept_for_a_window_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"DILASERVE_REQUEST_RETENTION_S": "60", "DILASERVE_WINDOW_S": "300"}
    assert run_service("reconfigurator", ReconfiguratorSettings, prepare, asyncio.run, environ) == 2
    assert capsys.readouterr().err == (
        "reconfigurator: DILASERVE_REQUEST_RETENTION_S=60: accepted: at least DILASERVE_WINDOW_S=300, "
        "which decisions read\n"
    )


async def test_rows_are_locked_in_the_order_of_their_keys(database: AsyncEngine) -> None:
    """Else two writers of the same rows can end in a deadlock."""
    await upgrade(database)
    names, locked = ["c", "a", "b"], list[str]()

    def watch(_connection: Any, _cursor: Any, _statement: str, rows: Any, *_: Any) -> None:
        locked.extend(value for row in rows for value in row if value in names)

    event.listen(database.sync_engine, "before_cursor_execute", watch)
    outcomes = [msgspec.structs.replace(SERVED, request_id=name) for name in names]
    await write_rows(MONITORED_STREAMS[1], database, [outcome_row(outcome) for outcome in outcomes])
    assert locked == sorted(names)
