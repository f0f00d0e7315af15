"""Plans on a real bus, with a launcher whose instances only register."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from nats.aio.msg import Msg

from services.reconfigurator.controller import ReconfigurationController
from services.reconfigurator.execution.executor import Executor, instances_at
from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.nodes import read_nodes
from services.reconfigurator.planning.decision import Planner
from services.reconfigurator.planning.plan import Solver
from services.reconfigurator.planning.workload_stats import PlanningSettings
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus, try_decode
from shared.bus.codec import encode
from shared.bus.instance_watch import InstanceWatch
from shared.bus.subjects import HEARTBEAT_S
from shared.database.schema import open_database
from shared.errors import BadInput, RetryLater
from shared.messages.instances import Control, Instance, InstanceState
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanRecord, PlanState
from shared.profile import LatencyProfile
from tests.builders import instance
from tests.support.waiting import reached

WAIT_S = 30.0
RENEWAL_S = 0.05
LARGE, LEFT, RIGHT = (InstanceSpec(node="a", gpus=gpus) for gpus in ((0, 1), (0,), (1,)))
PLAN = PlanRecord(
    plan_id="p", decided_s=0.0, state=PlanState.RUNNING, reason="a test", before=[LARGE], target=[LEFT, RIGHT]
)


class RegisteringLauncher:
    """Each instance registers under a new id and renews that, until it is stopped."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._tasks: dict[InstanceSpec, asyncio.Task[None]] = {}
        self._started = 0
        self.never_serving: set[InstanceSpec] = set()  # instances that never become ready
        self.impossible: set[InstanceSpec] = set()  # instances that cannot be started
        self.failing: set[InstanceSpec] = set()  # instances whose start fails each time with RetryLater
        self.renewal_s = RENEWAL_S
        self.held = 0  # requests that an instance holds when its drain begins
        self.done: list[str] = []

    async def nodes(self) -> list[str]:
        return ["a"]

    async def running(self) -> list[InstanceSpec]:
        return list(self._tasks)

    async def start(self, spec: InstanceSpec) -> None:
        if spec in self.impossible:
            raise BadInput("no such device")
        if spec in self.failing:
            raise RetryLater("the Docker Engine failed: no driver")
        self.done.append(f"start {spec.gpus}")
        self._started += 1
        registration = instance(
            f"{spec.name}-{self._started}",
            tp_degree=spec.tp,
            node=spec.node,
            gpus=list(spec.gpus),
            state=InstanceState.STARTING if spec in self.never_serving else InstanceState.READY,
            profile="measured",
        )
        self._tasks[spec] = asyncio.create_task(self._live(registration))

    async def stop(self, spec: InstanceSpec, grace_s: float) -> None:  # noqa: ARG002  (it ends at once)
        self.done.append(f"stop {spec.gpus}")
        await self.lose(spec)

    async def lose(self, spec: InstanceSpec) -> None:
        """Kill the process: its registration stays."""
        task = self._tasks.pop(spec)
        while not task.done():  # Python 3.11's wait_for can swallow a cancellation
            task.cancel()
            await asyncio.wait([task], timeout=0.1)

    async def close(self) -> None:
        for spec in list(self._tasks):
            await self.lose(spec)

    async def _live(self, instance: Instance) -> None:
        state = {"instance": instance}

        async def receive(msg: Msg) -> None:
            order = try_decode(msg, Control)
            if order is not None and state["instance"].state is InstanceState.READY:
                self.done.append(f"drain {tuple(instance.gpus)}")
                state["instance"] = replace(instance, state=InstanceState.DRAINING, requests=self.held)

        subscription = await self._bus.nc.subscribe(self._bus.subjects.control(instance.instance_id), cb=receive)
        bucket = await self._bus.bucket(self._bus.subjects.instances_bucket)
        try:
            while True:
                await bucket.put(instance.instance_id, encode(state["instance"]))
                await asyncio.sleep(self.renewal_s)
                now = state["instance"]
                state["instance"] = replace(now, requests=max(0, now.requests - 1))
        finally:
            await subscription.unsubscribe()


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
    return Executor(bus, launcher, instances, ReconfiguratorSettings(drain_s=5.0, start_s=1.0, stop_s=1.0))


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
    assert ended.ended_s is not None


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


async def test_launches_on_free_gpus_run_side_by_side_with_their_own_limits(
    executor: Executor, launcher: RegisteringLauncher
) -> None:
    launcher.never_serving = {LEFT, RIGHT}
    ended = await carried_out(executor)
    events = [event.text.partition(":")[0] for event in ended.events]
    assert events[2:6] == ["start worker-a-0", "start worker-a-1", "worker-a-0 failed", "worker-a-1 failed"]


async def test_if_one_of_several_launches_fails_the_others_stay(
    executor: Executor, launcher: RegisteringLauncher
) -> None:
    launcher.never_serving = {LEFT}
    ended = await carried_out(executor)
    assert set(await launcher.running()) == {RIGHT}
    assert ended.state is PlanState.FAILED


async def test_an_instance_lost_during_a_transition_is_restarted(
    executor: Executor, launcher: RegisteringLauncher
) -> None:
    running = asyncio.create_task(carried_out(executor))
    await reached(lambda: "start (0,)" in launcher.done)
    await launcher.lose(LEFT)
    assert (await running).state is PlanState.DONE
    assert set(await launcher.running()) == {LEFT, RIGHT}
    assert launcher.done.count("start (0,)") == 2


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


async def test_after_a_restart_an_instance_is_still_drained_before_its_stop(
    bus: Bus, launcher: RegisteringLauncher
) -> None:
    launcher.renewal_s = HEARTBEAT_S
    await bus.store(bus.subjects.plans(PLAN.plan_id), PLAN)
    instances, stop = InstanceWatch(), asyncio.Event()
    await instances.start(bus)
    executor = Executor(bus, launcher, instances, ReconfiguratorSettings(drain_s=5.0, start_s=30.0, stop_s=1.0))
    never = open_database("postgresql://127.0.0.1:1/postgres")
    planner = Planner(
        read_nodes(["a:2"]), PlanningSettings([0.9], [1, 2], [32]), {}, cached=False, solver=Solver.CBC, solve_s=1.0
    )
    controller = ReconfigurationController(
        bus, never, launcher, instances, executor, planner, LatencyProfile({}), ReconfiguratorMetrics()
    )
    running = asyncio.create_task(controller.run(interval_s=1e6, window_s=1e6, stop=stop))
    try:
        await reached(lambda: "start (1,)" in launcher.done)
    finally:
        stop.set()
        await running
        await never.dispose()
    assert launcher.done == ["drain (0, 1)", "stop (0, 1)", "start (0,)", "start (1,)"]
