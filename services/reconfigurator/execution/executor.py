"""Carries out a plan: one action after another, each derived from the instances that exist (transition.py).

So the cluster reaches the target even if an instance dies or the reconfigurator restarts on the way. Where a launch
fails, the instances that ran there before come back.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

import structlog
from msgspec.structs import replace

from services.reconfigurator.execution.launchers import Launcher
from services.reconfigurator.execution.transition import (
    Action,
    AwaitReady,
    StartInstance,
    StopInstance,
    next_action,
    without_failed,
)
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus.client import Bus
from shared.bus.instance_watch import InstanceWatch
from shared.errors import BadInput, RetryLater
from shared.messages.instances import Control, Instance, InstanceState
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanEvent, PlanRecord, PlanState
from shared.retry import retry

log = structlog.get_logger(__name__)

POLL_S = 0.2
DRAIN_REPORT_S = 3.0  # beyond the drain time: time that an instance may take to report that it holds no request

Report = Callable[[PlanRecord], Awaitable[None]]


class Executor:
    """Brings the cluster to one target after another."""

    def __init__(
        self, bus: Bus, launcher: Launcher, instances: InstanceWatch, settings: ReconfiguratorSettings
    ) -> None:
        self._bus = bus
        self._launcher = launcher
        self._instances = instances
        self._settings = settings

    async def run(self, record: PlanRecord, report: Report) -> None:
        """Carry out a plan, some of which may be done already. `report` receives the record after every event; after a
        cancellation, run again with the record reported last."""
        run = _Run(record, report)
        while await retry(partial(self._step, run)):
            pass
        state = PlanState.FAILED if run.failed else PlanState.DONE
        await run.report("some instances could not be started" if run.failed else "done", state)

    async def _step(self, run: "_Run") -> bool:
        """Do the next action. Returns: False if none is left. Raises: RetryLater if the launcher does not answer."""
        running = await self._launcher.running()
        target = without_failed(run.record.target, run.record.before, run.failed)
        action = next_action(target, running, self._serving(running, run))
        if action is None:
            return False
        try:
            match action:
                case StopInstance(spec):
                    await self._stop(spec, run)
                case StartInstance(spec):
                    await self._start(spec, run)
                case AwaitReady(specs):
                    await self._await(specs, run)
        except RetryLater:
            run.postponed.setdefault(action, asyncio.get_running_loop().time())
            raise
        run.postponed.pop(action, None)
        return True

    def _serving(self, running: Collection[InstanceSpec], run: "_Run") -> list[InstanceSpec]:
        """The running instances that are ready and have their latency profile."""

        def serves(i: Instance) -> bool:
            return i.state is InstanceState.READY and bool(i.profile) and i.instance_id not in run.replaced

        return [spec for spec in running if any(map(serves, instances_at(self._instances, spec)))]

    async def _stop(self, spec: InstanceSpec, run: "_Run") -> None:
        await run.announce(StopInstance(spec), f"drain {spec.name}")
        await self._drain(spec)
        await run.announce(StopInstance(spec), f"stop {spec.name}")
        await self._launcher.stop(spec, self._settings.stop_s)
        run.mark_replaced(spec, self._instances)

    async def _start(self, spec: InstanceSpec, run: "_Run") -> None:
        run.mark_replaced(spec, self._instances)
        await run.announce(StartInstance(spec), f"start {spec.name}")
        try:
            await self._launcher.start(spec)
        except BadInput as error:
            await run.fail(spec, error.message)
        except RetryLater as error:  # the launcher answers, but this launch fails each time
            since_s = run.postponed.get(StartInstance(spec))
            if since_s is None or asyncio.get_running_loop().time() - since_s <= self._settings.start_s:
                raise
            await run.fail(spec, str(error))

    async def _await(self, specs: Iterable[InstanceSpec], run: "_Run") -> None:
        now_s = asyncio.get_running_loop().time()
        late = [spec for spec in specs if now_s - run.awaited.setdefault(spec, now_s) > self._settings.start_s]
        for spec in late:
            await run.fail(spec, f"it does not serve {self._settings.start_s:g} s after its launch")
        if not late:
            await asyncio.sleep(POLL_S)

    async def _drain(self, spec: InstanceSpec) -> None:
        """Wait until the instance reports that it holds no request, or until its time is up."""
        order = Control(action="drain", within_s=self._settings.drain_s)
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self._settings.drain_s + DRAIN_REPORT_S
        while now_s() < deadline_s:
            instances = instances_at(self._instances, spec)
            for instance in instances:
                if instance.state is InstanceState.READY:  # it has not received the order yet
                    await self._bus.publish(self._bus.subjects.control(instance.instance_id), order)
            if not any(i.requests or i.state is InstanceState.READY for i in instances):
                return
            await asyncio.sleep(POLL_S)


class _Run:
    """A plan in progress."""

    def __init__(self, record: PlanRecord, report: Report) -> None:
        self.record = record
        self.failed: set[InstanceSpec] = set()
        self.awaited: dict[InstanceSpec, float] = {}  # launched instances, and since when, loop time
        self.postponed: dict[Action, float] = {}  # actions that the launcher has failed at, and since when, loop time
        self.replaced: set[str] = set()  # ids of ended instances, which may still be registered
        self._report = report

    async def announce(self, action: Action, text: str) -> None:
        """Report that an action begins, once even if it is postponed."""
        if action not in self.postponed:
            await self.report(text)

    async def report(self, text: str, state: PlanState = PlanState.RUNNING) -> None:
        """Add an event to the record and report it."""
        now_s = time.time()
        log.info(text, plan=self.record.plan_id)
        events = [*self.record.events, PlanEvent(at_s=now_s, text=text)]
        ended_s = None if state is PlanState.RUNNING else now_s
        self.record = replace(self.record, events=events, state=state, ended_s=ended_s)
        await self._report(self.record)

    async def fail(self, spec: InstanceSpec, why: str) -> None:
        self.failed.add(spec)
        await self.report(f"{spec.name} failed: {why}")

    def mark_replaced(self, spec: InstanceSpec, instances: InstanceWatch) -> None:
        """Ignore the instances registered on these GPUs now; their successor has another id."""
        self.replaced.update(instance.instance_id for instance in instances_at(instances, spec))
        self.awaited.pop(spec, None)


def instances_at(instances: InstanceWatch, spec: InstanceSpec) -> list[Instance]:
    """The instances on the GPUs of `spec`: one, or for a while also its predecessor."""
    return [i for i in instances.instances() if (i.node, tuple(i.gpus)) == (spec.node, spec.gpus)]
