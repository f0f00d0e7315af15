"""Makes decisions at the times of the schedule, stores each, and carries out the accepted plans.

A transition does not stop the decisions: an accepted plan takes over from the one in progress after its current action.
"""

import asyncio
import dataclasses
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import nan

import structlog
from msgspec.structs import replace

from services.reconfigurator.execution.executor import Executor
from services.reconfigurator.execution.launchers.launcher import Launcher
from services.reconfigurator.execution.transition import can_resume
from services.reconfigurator.metrics import ReconfiguratorMetrics
from services.reconfigurator.monitoring.plan_tracing import PlanTraces
from services.reconfigurator.monitoring.recent_workload import RecentWorkload
from services.reconfigurator.planning.decision import Planner, PlanningContext
from services.reconfigurator.schedule import LossWatch, PlanSchedule, PlanTrigger
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.bus.plan_history import read_plans
from shared.bus.subjects import HEARTBEAT_S
from shared.errors import DilaserveError, RetryLater
from shared.messages.plans import PlanEvent, PlanRecord, PlanState
from shared.retry import retry
from shared.run_in_process import run_in_process
from shared.tasks import pause

log = structlog.get_logger(__name__)

LOSS_CHECK_S = 1.0  # between two checks for lost instances
RETRY_S = 2.0  # from a decision whose data could not be read to the next attempt
MAX_RESUMED_PLANS = 100  # newest decisions that are searched for an interrupted plan


@dataclass(slots=True)
class ReconfigurationController:
    _bus: Bus
    _clock: BusClock
    _workload: RecentWorkload
    _launcher: Launcher
    _executor: Executor
    _planner: Planner
    _metrics: ReconfiguratorMetrics
    _transition: asyncio.Task[None] | None = None  # the last plan that was begun
    _traces: PlanTraces = field(default_factory=PlanTraces)
    _known_tokens_per_step: dict[float, float] = field(default_factory=dict)
    _losses: LossWatch = field(default_factory=LossWatch)
    _any_lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, interval_s: float, window_s: float) -> None:
        """Continue an interrupted plan. Decide every `interval_s`, first after a window, early if the load outgrows the
        plan, and at once if instances are lost, until cancelled; plans are carried out meanwhile."""
        await self._bus.wait_for_stream(self._bus.subjects.stream("PLANS"))
        async with asyncio.TaskGroup() as group:
            await retry(partial(self._resume, group))
            await retry(partial(self._start_first, window_s, group))
            group.create_task(self._watch_losses())
            schedule = PlanSchedule(interval_s, window_s, self._planner.planning.rps_buffer, time.monotonic())
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(schedule.next_check_in_s(time.monotonic())):
                        await self._any_lost.wait()
                try:
                    await self.check(schedule, group)
                except RetryLater as error:
                    log.warning("no decision yet", error=str(error))
                    await asyncio.sleep(RETRY_S)

    async def check(self, schedule: PlanSchedule, group: asyncio.TaskGroup) -> None:
        """Decide if a decision is due; begin an accepted plan in `group`. A decision stays due until its data can be
        read.

        Raises: RetryLater if the data cannot be read or the planner's process dies; the next decision then waits for
        its interval.
        """
        lost = self._losses.lost
        recent = await self._workload.count_arrivals(schedule.recent_s)
        trigger = schedule.due(time.monotonic(), recent, sorted(spec.name for spec in lost))
        if trigger is None:
            return
        context = await self._read_context(trigger)
        schedule.decided(trigger, len(context.requests) / trigger.span_s)
        self._losses.forget(lost)
        self._any_lost.clear()  # a later loss sets it again
        await self._take(await self._decide(context), group)

    async def _resume(self, group: asyncio.TaskGroup) -> None:
        """Continue the plan that an earlier reconfigurator left unfinished."""
        records = await read_plans(self._bus, MAX_RESUMED_PLANS)
        record = next((record for record in records if record.state is not PlanState.STAYED), None)
        if record is None or record.state is not PlanState.RUNNING:
            return
        gpus = {node.name: node.gpus for node in self._planner.nodes}
        if can_resume(record.target, record.before, await self._launcher.running(), gpus):
            log.info("resuming", plan=record.plan_id)
            await asyncio.sleep(2 * HEARTBEAT_S)  # instances without a heartbeat so far would stop without a drain
            self._begin(record, group)
        else:
            log.warning("not resumed: the cluster has changed", plan=record.plan_id)
            event = PlanEvent(at_s=self._clock.now_s(), text="given up: the cluster is another one now")
            events = [*record.events, event]
            await self._store(replace(record, state=PlanState.FAILED, events=events, ended_s=event.at_s))

    async def _start_first(self, window_s: float, group: asyncio.TaskGroup) -> None:
        """If no instance runs, as with new containers, decide without waiting for a window."""
        if self._transition is None and not await self._launcher.running():
            await self._take(await self._decide(await self._read_context(PlanTrigger(window_s))), group)

    async def _watch_losses(self) -> None:
        """Set `_any_lost` when an instance is lost, until cancelled."""
        while True:
            with suppress(RetryLater):  # the next check follows
                running = await self._launcher.running()
                if self._losses.update(running, self._executor.serving(running), self._executor.stopped):
                    self._any_lost.set()
            await asyncio.sleep(LOSS_CHECK_S)

    async def _decide(self, context: PlanningContext) -> PlanRecord:
        """Raises: RetryLater if the planner's process dies."""
        record = await run_in_process(self._planner.decide, context, self._clock.now_s())
        record = self._traces.decided(record, self._clock.now_s())
        self._known_tokens_per_step = record.tokens_per_step
        log.info("decided", plan=record.plan_id, state=record.state.value, reason=record.reason)
        self._metrics.decided(record, context.target)
        return record

    async def _take(self, record: PlanRecord, group: asyncio.TaskGroup) -> None:
        """Store a decision. If it is accepted, begin its plan; a plan in progress first ends its current action."""
        if record.state is PlanState.RUNNING and self._transition and not self._transition.done():
            self._executor.give_way()
            await asyncio.wait([self._transition])
            running = await retry(self._launcher.running)
            record = replace(record, before=sorted(running))
        await self._store(record)
        if record.state is PlanState.RUNNING:
            self._begin(record, group)

    def _begin(self, record: PlanRecord, group: asyncio.TaskGroup) -> None:
        self._transition = group.create_task(self._executor.run(record, self._store))

    async def _read_context(self, trigger: PlanTrigger) -> PlanningContext:
        """Raises: RetryLater if Postgres, the bus or the launcher does not answer, or Postgres lacks arrivals."""
        return dataclasses.replace(
            await self._workload.context(trigger),
            running=await self._executor.staying(),
            target=self._executor.target,
            nodes_up=await self._launcher.nodes(),
            known_tokens_per_step=self._known_tokens_per_step,
        )

    async def _store(self, record: PlanRecord) -> None:
        """Publish; the workload monitor writes it to Postgres."""
        if record.state is not PlanState.RUNNING:
            self._metrics.ended(record)
            self._traces.ended(record)
        await retry(partial(self._bus.store, self._bus.subjects.plans(record.plan_id), record))


async def follow_wanted_gpus(
    workload: RecentWorkload, planner: Planner, metrics: ReconfiguratorMetrics, settings: ReconfiguratorSettings
) -> None:
    """Count the GPUs that the recent workload needs, for autoscalers, at each interval, until cancelled."""
    while True:
        await pause(settings.interval_s)
        try:
            gpus = await count_wanted_gpus(workload, planner, settings)
        except (DilaserveError, ValueError) as error:
            log.warning("cannot count the GPUs that the workload needs", error=str(error))
            gpus = None
        metrics.wanted_gpus.set(nan if gpus is None else gpus)


async def count_wanted_gpus(workload: RecentWorkload, planner: Planner, settings: ReconfiguratorSettings) -> int | None:
    """The GPUs that the arrivals of the last window need; None: not known. Raises: as `RecentWorkload.context`."""
    context = await workload.context(PlanTrigger(settings.window_s))
    return await run_in_process(planner.wanted_gpus, context, settings.wanted_threshold)
