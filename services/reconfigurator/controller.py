"""Decides again and again, stores each decision, and carries out those to change something."""

import asyncio
import time
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.execution.executor import Executor
from services.reconfigurator.execution.launchers import Launcher
from services.reconfigurator.execution.transition import can_resume
from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring.request_history import count_arrivals, read_window
from services.reconfigurator.monitoring.workload_monitor import eventually
from services.reconfigurator.planning.decision import Planner, PlanningContext
from services.reconfigurator.planning.missing_profiles import fill_missing_profiles
from services.reconfigurator.planning.run_in_process import run_in_process
from services.reconfigurator.schedule import PlanSchedule, PlanTrigger
from shared.bus.client import Bus
from shared.bus.instance_watch import InstanceWatch
from shared.bus.plan_history import read_plans
from shared.bus.subjects import HEARTBEAT_S
from shared.errors import RetryLater
from shared.messages.plans import PlanEvent, PlanRecord, PlanState
from shared.profile import LatencyProfile
from shared.tasks import run_until_stopped

log = structlog.get_logger(__name__)

LATE_S = 1.0  # how long after its arrival a request may be written down
UNDER_WAY = 10  # newest plans among which one is that was interrupted


class ReconfigurationController:
    """The reconfigurator of one cell."""

    def __init__(
        self,
        bus: Bus,
        engine: AsyncEngine,
        launcher: Launcher,
        instances: InstanceWatch,
        executor: Executor,
        planner: Planner,
        profile: LatencyProfile | None,
        metrics: ReconfiguratorMetrics,
    ) -> None:
        """`profile`: what is known before any instance brings its own."""
        self._bus = bus
        self._engine = engine
        self._launcher = launcher
        self._instances = instances
        self._executor = executor
        self._planner = planner
        self._profile = profile or LatencyProfile({})
        self._metrics = metrics
        self._known_tokens: dict[float, float] = {}

    async def run(self, interval_s: float, window_s: float, stop: asyncio.Event) -> None:
        """Finish what was interrupted; then decide every `interval_s`, first when a window has passed, and early where
        the load outgrows the plan. Until `stop`."""
        await run_until_stopped(stop, self._work(interval_s, window_s, stop))

    async def _work(self, interval_s: float, window_s: float, stop: asyncio.Event) -> None:
        await self._bus.wait_for_stream(self._bus.subjects.stream("PLANS"))
        await eventually(partial(self._resume, stop), stop)
        await eventually(partial(self._begin, window_s, stop), stop)
        agenda = PlanSchedule(interval_s, window_s, self._planner.planning.rps_buffer, time.monotonic())
        while True:
            await asyncio.sleep(agenda.next_check_in_s(time.monotonic()))
            if trigger := agenda.due(time.monotonic(), await self._arrivals(agenda.recent_s)):
                with suppress(RetryLater):
                    record = await self._decide(trigger, stop)
                    agenda.decided(trigger, sum(load.rps for load in record.classes))
                    await self._carry_out(record, stop)

    async def _resume(self, stop: asyncio.Event) -> None:
        """Go on with a plan that a reconfigurator before this one had begun."""
        for record in await read_plans(self._bus, UNDER_WAY):
            if record.state is PlanState.RUNNING:
                await self._go_on(record, stop)
                return

    async def _go_on(self, record: PlanRecord, stop: asyncio.Event) -> None:
        gpus = {node.name: node.gpus for node in self._planner.nodes}
        if can_resume(record.target, record.before, await self._launcher.running(), gpus):
            log.info("resuming", plan=record.plan_id)
            await asyncio.sleep(2 * HEARTBEAT_S)  # what has not been heard yet would be stopped without a drain
            await self._executor.run(record, partial(self._store, stop=stop))
        else:
            log.warning("not resumed: the cluster has changed", plan=record.plan_id)
            event = PlanEvent(at_s=time.time(), text="given up: the cluster is another one now")
            ended = replace(record, state=PlanState.FAILED, events=[*record.events, event], ended_s=event.at_s)
            await self._store(ended, stop)

    async def _begin(self, window_s: float, stop: asyncio.Event) -> None:
        """Where nothing runs, as with new containers, the first decision does not wait for a window."""
        if not await self._launcher.running():
            await self._carry_out(await self._decide(PlanTrigger(window_s), stop), stop)

    async def _arrivals(self, span_s: float) -> int:
        """How many requests came lately; none where Postgres is away, of which the next decision in order tells."""
        until_s = time.time() - LATE_S
        try:
            return await count_arrivals(self._engine, until_s - span_s, until_s)
        except RetryLater:
            return 0

    async def _decide(self, trigger: PlanTrigger, stop: asyncio.Event) -> PlanRecord:
        """Raises: RetryLater, having said so in the log, where there is nothing to decide from."""
        now_s = time.time()
        try:
            situation = await self._look(now_s - LATE_S, trigger)
            record = await run_in_process(self._planner.decide, situation, now_s)
        except RetryLater as error:
            log.warning("no decision", error=str(error))
            raise
        self._known_tokens = record.tokens_per_step
        log.info("decided", plan=record.plan_id, state=record.state.value, reason=record.reason)
        self._metrics.decided(record)
        await self._store(record, stop)
        return record

    async def _carry_out(self, record: PlanRecord, stop: asyncio.Event) -> None:
        if record.state is PlanState.RUNNING:
            await self._executor.run(record, partial(self._store, stop=stop))

    async def _look(self, until_s: float, trigger: PlanTrigger) -> PlanningContext:
        seen, uses = await read_window(self._engine, until_s - trigger.span_s, until_s)
        self._profile = await fill_missing_profiles(self._profile, self._instances.instances(), self._engine)
        return PlanningContext(
            seen=seen,
            uses=uses,
            trigger=trigger,
            running=await self._launcher.running(),
            nodes_up=await self._launcher.nodes(),
            profile=self._profile,
            known_tokens_per_step=self._known_tokens,
        )

    async def _store(self, record: PlanRecord, stop: asyncio.Event) -> None:
        """Publish, which the monitor then writes to Postgres."""
        if record.state is not PlanState.RUNNING:
            self._metrics.ended(record)
        await eventually(partial(self._bus.store, self._bus.subjects.plans(record.plan_id), record), stop)
