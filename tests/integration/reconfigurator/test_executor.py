"""Plans on a real bus, with a launcher whose instances only register."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from services.reconfigurator.controller import ReconfigurationController
from services.reconfigurator.execution.executor import Executor, instances_at
from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring.recent_workload import RecentWorkload
from services.reconfigurator.nodes import read_nodes
from services.reconfigurator.planning.decision import Planner
from services.reconfigurator.planning.workload_stats import PlanningSettings
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.bus.instance_watch import InstanceWatch
from shared.bus.subjects import HEARTBEAT_S
from shared.database.schema import open_database
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanAction, PlanRecord, PlanState
from shared.profile import LatencyProfile
from shared.tasks import during
from tests.support.registering_launcher import RegisteringLauncher
from tests.support.waiting import reached

WAIT_S = 30.0
BEGAN_S = 1e9  # of a plan, Unix time by the bus's clock
LARGE, LEFT, RIGHT = (InstanceSpec(node="a", gpus=gpus) for gpus in ((0, 1), (0,), (1,)))
PLAN = PlanRecord(
    plan_id="p", decided_s=0.0, state=PlanState.RUNNING, reason="a test", before=[LARGE], target=[LEFT, RIGHT]
)


@pytest.fixture
async def launcher(bus: Bus) -> AsyncIterator[RegisteringLauncher]:
    made = RegisteringLauncher(bus)
    await made.start(LARGE)
    made.done.clear()
    yield made
    await made.close()


@pytest.fixture
async def executor(bus: Bus, launcher: RegisteringLauncher) -> Executor:
    instances = InstanceWatch()
    await instances.start(bus)
    await reached(lambda: bool(instances_at(instances, LARGE)))
    clock, now_s = BusClock(), time.monotonic()
    clock.set(datetime.fromtimestamp(BEGAN_S, UTC), now_s, now_s)
    return Executor(bus, clock, launcher, instances, ReconfiguratorSettings(drain_s=5.0, start_s=1.0, stop_s=1.0))


class LastReport:
    """The record reported last."""

    def __init__(self) -> None:
        self.last = PLAN

    async def __call__(self, record: PlanRecord) -> None:
        self.last = record


async def carried_out(executor: Executor, record: PlanRecord = PLAN) -> PlanRecord:
    report = LastReport()
    async with asyncio.timeout(WAIT_S):
        await executor.run(record, report)
    return report.last


async def test_each_launch_follows_the_stops_it_needs_and_a_stop_its_drain(
    executor: Executor, launcher: RegisteringLauncher
) -> None:
    launcher.held = 3
    ended = await carried_out(executor)
    assert launcher.done == ["drain (0, 1)", "stop (0, 1)", "start (0,)", "start (1,)"]
    assert set(await launcher.running()) == {LEFT, RIGHT}
    assert ended.state is PlanState.DONE
    actions = [(event.action, event.instance) for event in ended.events]
    assert actions[:3] == [(PlanAction.DRAIN, LARGE.name), (PlanAction.STOP, LARGE.name), (PlanAction.START, LEFT.name)]
    assert {(PlanAction.SERVE, LEFT.name), (PlanAction.SERVE, RIGHT.name)} < set(actions)
    assert all(0 <= event.at_s - BEGAN_S < WAIT_S for event in ended.events), "by the bus's clock"
    assert ended.ended_s == ended.events[-1].at_s


async def test_a_failed_launch_restores_the_instance_it_replaced(
    executor: Executor, launcher: RegisteringLauncher
) -> None:
    launcher.impossible, launcher.never_serving = {LEFT}, {RIGHT}
    ended = await carried_out(executor)
    assert set(await launcher.running()) == {LARGE}
    assert ended.state is PlanState.FAILED
    assert [event.text for event in ended.events if "failed" in event.text] == [
        "worker-a-0 failed: no such device",
        "worker-a-1 failed: it does not serve 1 s after its launch",
    ]


async def test_a_launch_that_keeps_failing_is_abandoned_and_reported_once(
    executor: Executor, launcher: RegisteringLauncher
) -> None:
    launcher.failing = {RIGHT}
    ended = await carried_out(executor)
    assert ended.state is PlanState.FAILED
    assert await launcher.running() == [LEFT]
    events = [event.text for event in ended.events if RIGHT.name in event.text]
    assert events == [f"start {RIGHT.name}", f"{RIGHT.name} failed: the Docker Engine failed: no driver"]


async def test_a_plan_continues_without_a_node_that_is_lost(executor: Executor, launcher: RegisteringLauncher) -> None:
    far = InstanceSpec(node="b", gpus=(0,))
    launcher.never_serving = {far}
    running = asyncio.create_task(carried_out(executor, replace(PLAN, target=[LARGE, far])))
    await reached(lambda: "start (0,)" in launcher.done)
    launcher.down = {"b"}
    ended = await running
    assert ended.state is PlanState.DONE
    assert [event.text for event in ended.events] == ["start worker-b-0", "b is not available", "done"]
    assert await launcher.running() == [LARGE]


async def test_an_interrupted_plan_is_continued(executor: Executor, launcher: RegisteringLauncher) -> None:
    report = LastReport()
    running = asyncio.create_task(executor.run(PLAN, report))
    await reached(lambda: "start (0,)" in launcher.done)
    while not running.done():
        running.cancel()
        await asyncio.wait([running], timeout=0.1)
    ended = await carried_out(executor, report.last)
    assert ended.state is PlanState.DONE
    assert launcher.done == ["drain (0, 1)", "stop (0, 1)", "start (0,)", "start (1,)"]


async def test_a_plan_gives_way_after_its_current_action_and_another_takes_over(
    executor: Executor, launcher: RegisteringLauncher
) -> None:
    launcher.held, launcher.never_serving, first = 3, {LEFT, RIGHT}, LastReport()
    running = asyncio.create_task(executor.run(PLAN, first))
    await reached(lambda: "drain (0, 1)" in launcher.done)
    assert executor.target == [LEFT, RIGHT]
    assert await executor.staying() == [], "the instance that drains is about to stop"
    executor.give_way()
    await running
    assert first.last.state is PlanState.REPLACED
    assert not executor.target
    assert launcher.done == ["drain (0, 1)", "stop (0, 1)"]
    back = replace(PLAN, plan_id="q", before=[], target=[LARGE])
    assert (await carried_out(executor, back)).state is PlanState.DONE
    assert launcher.done[2:] == ["start (0, 1)"]


async def test_an_instance_that_drains_is_started_again_if_the_new_plan_has_it(
    executor: Executor, launcher: RegisteringLauncher
) -> None:
    launcher.unstoppable, first = {LARGE}, LastReport()
    running = asyncio.create_task(executor.run(PLAN, first))
    await reached(lambda: launcher.refused > 0)
    executor.give_way()
    await running
    assert first.last.state is PlanState.REPLACED
    launcher.unstoppable = set()
    same = replace(PLAN, plan_id="q", before=[LARGE], target=[LARGE])
    assert (await carried_out(executor, same)).state is PlanState.DONE
    assert launcher.done == ["drain (0, 1)", "stop (0, 1)", "start (0, 1)"]


async def test_after_a_restart_an_instance_is_still_drained_before_its_stop(
    bus: Bus, launcher: RegisteringLauncher
) -> None:
    launcher.renewal_s = HEARTBEAT_S
    await bus.store(bus.subjects.plans(PLAN.plan_id), PLAN)
    instances = InstanceWatch()
    await instances.start(bus)
    settings = ReconfiguratorSettings(drain_s=5.0, start_s=30.0, stop_s=1.0)
    executor = Executor(bus, BusClock(), launcher, instances, settings)
    never = open_database("postgresql://127.0.0.1:1/postgres")
    planner = Planner(read_nodes(["a:2"]), PlanningSettings([0.9], [1, 2], [32]), {}, cached=False, solve_s=1.0)
    workload = RecentWorkload(bus, BusClock(), never, instances, LatencyProfile({}))
    metrics = ReconfiguratorMetrics()
    controller = ReconfigurationController(bus, BusClock(), workload, launcher, executor, planner, metrics)
    try:
        async with during(controller.run(interval_s=1e6, window_s=1e6)):
            await reached(lambda: "start (1,)" in launcher.done)
    finally:
        await never.dispose()
    assert launcher.done == ["drain (0, 1)", "stop (0, 1)", "start (0,)", "start (1,)"]
