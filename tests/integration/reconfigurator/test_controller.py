"""The controller on a real bus and a real Postgres, with a launcher whose instances only register."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.controller import ReconfigurationController, count_wanted_gpus, follow_wanted_gpus
from services.reconfigurator.execution.executor import Executor, instances_at
from services.reconfigurator.metrics import NAME, ReconfiguratorMetrics
from services.reconfigurator.monitoring.recent_workload import RecentWorkload
from services.reconfigurator.monitoring.workload_monitor import monitor
from services.reconfigurator.nodes import read_nodes
from services.reconfigurator.planning.decision import Planner
from services.reconfigurator.planning.workload_stats import PlanningSettings
from services.reconfigurator.schedule import PlanSchedule
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.bus.codec import encode
from shared.bus.instance_watch import InstanceWatch
from shared.bus.plan_history import read_plans
from shared.errors import RetryLater
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanRecord, PlanState
from shared.messages.requests import Arrival
from shared.profile import LatencyProfile
from shared.tasks import during
from tests.builders import instance
from tests.support.postgres import PostgresServer
from tests.support.registering_launcher import RegisteringLauncher
from tests.support.waiting import eventually, reached, until
from tests.support.workloads import PROFILE

WAIT_S = 60.0
RETENTION_S = 1e6
HEAVY_S = 150.0  # window with 2 requests a second, more than any instances serve in time
PAUSE_S = 10.0  # time since the last of them
LARGE, LEFT, RIGHT = (InstanceSpec(node="a", gpus=gpus) for gpus in ((0, 1), (0,), (1,)))
PLANNING = PlanningSettings(thresholds=[0.5, 0.9], tp_degrees=[1, 2], batch_sizes=[32, 256], rps_buffer=0.0)
PLANNER = Planner(read_nodes(["a:2"]), PLANNING, {0.5: 6.0, 0.9: 2.0}, cached=False, solve_s=30.0)


def due(window_s: float) -> PlanSchedule:
    """A schedule whose decision is due, and the next one not for long."""
    return PlanSchedule(1e6, window_s, 0.0, time.monotonic() - 1e6)


class Cell:
    """A monitor, and a controller whose decisions a test triggers."""

    def __init__(self, bus: Bus, engine: AsyncEngine, launcher: RegisteringLauncher) -> None:
        self.bus, self.engine, self.launcher = bus, engine, launcher
        self.instances = InstanceWatch()
        settings = ReconfiguratorSettings(drain_s=5.0, start_s=WAIT_S, stop_s=1.0)
        self.controller = ReconfigurationController(
            bus,
            BusClock(),
            RecentWorkload(bus, BusClock(), engine, self.instances, PROFILE),
            launcher,
            Executor(bus, BusClock(), launcher, self.instances, settings),
            PLANNER,
            ReconfiguratorMetrics(),
        )

    async def arrive(self, requests: int, latest_s: float, over_s: float) -> None:
        """Publish requests of 100 + 256 tokens that arrived `over_s` seconds long, the last one `latest_s` ago."""
        for number in range(requests):
            arrival_s = time.time() - latest_s - over_s * number / requests
            arrival = Arrival(
                request_id=f"{arrival_s}", arrival_s=arrival_s, prompt_tokens=100, output_tokens=256, slo_s=10.0
            )
            await self.bus.store(self.bus.subjects.arrivals, arrival)

    async def decide(self, group: asyncio.TaskGroup, schedule: PlanSchedule) -> None:
        """Make the decision that is due, as soon as its data can be read."""

        async def decided() -> bool:
            try:
                await self.controller.check(schedule, group)
            except RetryLater:
                return False
            return True

        await until(decided, WAIT_S)

    async def plans(self) -> list[PlanRecord]:
        """Oldest first."""
        return (await read_plans(self.bus, 10))[::-1]


@pytest.fixture
async def cell(bus: Bus, database: AsyncEngine) -> AsyncIterator[Cell]:
    launcher = RegisteringLauncher(bus)
    await launcher.start(LARGE)
    made = Cell(bus, database, launcher)
    await made.instances.start(bus)
    await reached(lambda: bool(instances_at(made.instances, LARGE)))
    async with asyncio.timeout(2 * WAIT_S), during(monitor(bus, database, ReconfiguratorMetrics(), RETENTION_S)):
        yield made
    await launcher.close()


async def test_a_decision_stays_due_until_postgres_is_back_with_the_whole_window(
    cell: Cell, postgres_server: PostgresServer
) -> None:
    schedule = due(HEAVY_S)
    async with asyncio.TaskGroup() as group:
        postgres_server.stop()
        with pytest.raises(RetryLater):
            await cell.controller.check(schedule, group)
        await cell.arrive(300, PAUSE_S, HEAVY_S - 4 * PAUSE_S)
        await postgres_server.start()
        await cell.decide(group, schedule)
    [plan] = await cell.plans()
    assert sum(load.rps for load in plan.classes) * HEAVY_S == pytest.approx(300)
    assert (plan.state, plan.target) == (PlanState.DONE, [LEFT, RIGHT])


async def test_a_change_of_load_during_a_transition_replaces_its_plan(cell: Cell) -> None:
    cell.launcher.never_serving = {LEFT, RIGHT}
    async with asyncio.TaskGroup() as group:
        await cell.arrive(300, PAUSE_S, HEAVY_S - 2 * PAUSE_S)
        await cell.decide(group, due(HEAVY_S))
        await reached(lambda: "start (1,)" in cell.launcher.done, WAIT_S)
        await cell.arrive(1, 1.5, 0.0)
        await cell.decide(group, due(PAUSE_S - 2.0))
    first, second = await cell.plans()
    assert (first.state, first.target) == (PlanState.REPLACED, [LEFT, RIGHT])
    assert (second.state, second.before, second.target) == (PlanState.DONE, [LEFT, RIGHT], [LARGE])
    assert "during a transition" in second.reason
    assert await cell.launcher.running() == [LARGE]


async def test_a_transition_continues_after_a_decision_to_stay(cell: Cell) -> None:
    cell.launcher.never_serving = {RIGHT}
    async with asyncio.TaskGroup() as group:
        await cell.arrive(300, PAUSE_S, HEAVY_S - 4 * PAUSE_S)
        await cell.decide(group, due(HEAVY_S))
        await reached(lambda: "start (1,)" in cell.launcher.done, WAIT_S)
        await cell.decide(group, due(HEAVY_S))
        cell.launcher.never_serving = set()
        await cell.launcher.lose(RIGHT)
    first, second = await cell.plans()
    assert (first.state, second.state) == (PlanState.DONE, PlanState.STAYED), second.reason
    assert set(await cell.launcher.running()) == {LEFT, RIGHT}


async def test_the_metric_counts_the_gpus_that_the_window_needs(cell: Cell) -> None:
    metrics = ReconfiguratorMetrics()
    workload = RecentWorkload(cell.bus, BusClock(), cell.engine, cell.instances, LatencyProfile())
    settings = ReconfiguratorSettings(interval_s=0.1, window_s=60.0, wanted_threshold=0.9)
    await cell.arrive(60, latest_s=5.0, over_s=10.0)
    bucket = await cell.bus.bucket(cell.bus.subjects.instances_bucket)
    await bucket.put("b-1", encode(instance("b-1", profile=PROFILE.to_csv())))
    async with during(follow_wanted_gpus(workload, PLANNER, metrics, settings)):
        await reached(lambda: (metrics.registry.get_sample_value(f"{NAME}_wanted_gpus") or 0.0) >= 1, WAIT_S)
    await cell.launcher.lose(LARGE)
    await reached(lambda: not cell.instances.instances(), WAIT_S)
    assert await count_wanted_gpus(workload, PLANNER, settings), "the costs stay known when no instance is left"


async def test_the_loss_of_the_last_instance_is_decided_on_at_once(cell: Cell) -> None:
    """The regular decision is not due for long, and nothing has arrived."""
    async with during(cell.controller.run(1e6, 1e6)):
        await reached(lambda: LARGE in cell.controller._losses._served)
        await cell.launcher.lose(LARGE)
        await eventually(cell.launcher.running, lambda found: set(found) == {LEFT, RIGHT}, WAIT_S)
        [plan] = await cell.plans()
        assert "nothing runs" in plan.reason


async def test_a_loss_noticed_during_a_decision_is_considered_by_the_next(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, schedule = cell.controller._losses, due(HEAVY_S)
    losses.update(running=[LARGE], serving=[LARGE], stopped=[])

    async def nodes() -> list[str]:  # the decision asks for them after the instances
        losses.update(running=[], serving=[], stopped=[])
        return ["a"]

    monkeypatch.setattr(cell.launcher, "nodes", nodes)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            await cell.decide(group, schedule)
    first, second = await cell.plans()
    assert "loss" not in first.reason
    assert f"after the loss of {LARGE.name}" in second.reason
