"""Carries out a plan: one action after another, each derived from the instances that exist (transition.py).

So the cluster reaches the target even if an instance dies or the reconfigurator restarts on the way. Where a launch
fails, the instances that ran there before come back. Another plan may take over between any two actions: no instance is
left half-way, and the new plan starts from the instances that exist.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

import structlog
from msgspec.structs import replace

from services.reconfigurator.execution.launchers.launcher import Launcher
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
from shared.bus.clock import BusClock
from shared.bus.instance_watch import InstanceWatch
from shared.errors import BadInput, RetryLater
from shared.messages.instances import Control, Instance, InstanceState
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanAction, PlanEvent, PlanRecord, PlanState
from shared.retry import retry

log = structlog.get_logger(__name__)

POLL_S = 0.2
DRAIN_REPORT_S = 3.0  # beyond the drain time: time that an instance may take to report that it holds no request

Report = Callable[[PlanRecord], Awaitable[None]]


class Executor:
    """Brings the cluster to one target after another."""

    def __init__(
        self, bus: Bus, clock: BusClock, launcher: Launcher, instances: InstanceWatch, settings: ReconfiguratorSettings
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._launcher = launcher
        self._instances = instances
        self._settings = settings
        self._run: _Run | None = None  # the plan in progress
        self._ended: set[str] = set()  # ids of stopped instances, which may still be registered
        self.stopped: set[InstanceSpec] = set()  # instances that plans have stopped or are stopping, until a new start

    @property
    def target(self) -> list[InstanceSpec] | None:
        """The instances that the plan in progress leads to; None: no plan is in progress."""
        return None if self._run is None else self._run.target

    async def staying(self) -> list[InstanceSpec]:
        """The instances that exist and that the plan in progress is not about to stop. Raises: RetryLater."""
        running = await self._launcher.running()
        leaving = [] if self._run is None else [self._run.stopping, *self._draining(running)]
        return [spec for spec in running if spec not in leaving]

    async def run(self, record: PlanRecord, report: Report) -> None:
        """Carry out a plan, some of which may be done already, or until it has to give way. `report` receives the
        record after every event; after a cancellation, run again with the record reported last."""
        run = self._run = _Run(record, report, self._clock)
        try:
            while await retry(partial(self._step, run)):
                pass
            await run.end()
        finally:
            self._run = None

    def give_way(self) -> None:
        if self._run is not None:
            self._run.gives_way = True

    async def _step(self, run: "_Run") -> bool:
        """Do the next action. Returns: False if none is left, or if the plan gives way. Raises: RetryLater."""
        if run.gives_way:
            return False
        await run.set_nodes(await self._launcher.nodes())
        running = await self._launcher.running()
        serving = self.serving(running)
        for spec in run.launched.intersection(serving):
            run.launched.discard(spec)
            await run.report(f"{spec.name} serves", PlanAction.SERVE, spec)
        action = next_action(run.target, running, serving, self._draining(running))
        if action is None:
            return False
        run.stopping = action.spec if isinstance(action, StopInstance) else None
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

    def serving(self, running: Collection[InstanceSpec]) -> list[InstanceSpec]:
        """The running instances that are ready and have their latency profile."""

        def serves(i: Instance) -> bool:
            return i.state is InstanceState.READY and bool(i.profile)

        return [spec for spec in running if any(map(serves, self._registered(spec)))]

    def _draining(self, running: Collection[InstanceSpec]) -> list[InstanceSpec]:
        """The running instances that take no more requests."""
        states = {spec: {i.state for i in self._registered(spec)} for spec in running}
        return [spec for spec in running if states[spec] == {InstanceState.DRAINING}]

    def _registered(self, spec: InstanceSpec) -> list[Instance]:
        return [i for i in instances_at(self._instances, spec) if i.instance_id not in self._ended]

    def _mark_ended(self, spec: InstanceSpec, run: "_Run") -> None:
        """Ignore the instances registered on these GPUs now; their successor has another id."""
        self._ended.update(instance.instance_id for instance in instances_at(self._instances, spec))
        run.awaited.pop(spec, None)
        run.launched.discard(spec)

    async def _stop(self, spec: InstanceSpec, run: "_Run") -> None:
        self.stopped.add(spec)
        await run.announce(StopInstance(spec), PlanAction.DRAIN)
        await self._drain(spec)
        await run.announce(StopInstance(spec), PlanAction.STOP)
        await self._launcher.stop(spec, self._settings.stop_s)
        self._mark_ended(spec, run)

    async def _start(self, spec: InstanceSpec, run: "_Run") -> None:
        self._mark_ended(spec, run)
        self.stopped.discard(spec)
        await run.announce(StartInstance(spec), PlanAction.START)
        try:
            await self._launcher.start(spec)
            run.launched.add(spec)
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

    def __init__(self, record: PlanRecord, report: Report, clock: BusClock) -> None:
        self.record = record
        self.failed: set[InstanceSpec] = set()
        self.launched: set[InstanceSpec] = set()  # of which no event states that they serve
        self.awaited: dict[InstanceSpec, float] = {}  # launched instances, and since when, loop time
        self.postponed: dict[Action, float] = {}  # actions that the launcher has failed at, and since when, loop time
        self.stopping: InstanceSpec | None = None  # the instance that the current action stops
        self.gives_way = False
        self._nodes: Collection[str] | None = None  # the nodes that are available; None: not known yet
        self._report = report
        self._clock = clock

    @property
    def target(self) -> list[InstanceSpec]:
        """The instances that this plan leads to, after the launches that failed so far, on the nodes that are
        available."""
        target = without_failed(self.record.target, self.record.before, self.failed)
        return [spec for spec in target if self._nodes is None or spec.node in self._nodes]

    async def set_nodes(self, nodes: Collection[str]) -> None:
        """Note the nodes that are available, and report each of the plan's that no longer is."""
        wanted = {spec.node for spec in self.record.target}
        lost = wanted.intersection(wanted if self._nodes is None else self._nodes).difference(nodes)
        self._nodes = nodes
        for node in sorted(lost):
            await self.report(f"{node} is not available")

    async def announce(self, begun: StartInstance | StopInstance, action: PlanAction) -> None:
        """Report that an action begins, once even if it is postponed."""
        if begun not in self.postponed:
            await self.report(f"{action} {begun.spec.name}", action, begun.spec)

    async def report(
        self,
        text: str,
        action: PlanAction | None = None,
        spec: InstanceSpec | None = None,
        *,
        state: PlanState = PlanState.RUNNING,
    ) -> None:
        now_s = self._clock.now_s()
        log.info(text, plan=self.record.plan_id)
        event = PlanEvent(at_s=now_s, text=text, action=action, instance="" if spec is None else spec.name)
        events = [*self.record.events, event]
        ended_s = None if state is PlanState.RUNNING else now_s
        self.record = replace(self.record, events=events, state=state, ended_s=ended_s)
        await self._report(self.record)

    async def fail(self, spec: InstanceSpec, why: str) -> None:
        self.failed.add(spec)
        await self.report(f"{spec.name} failed: {why}")

    async def end(self) -> None:
        if self.gives_way:
            await self.report("a later plan takes over", state=PlanState.REPLACED)
        elif self.failed:
            await self.report("some instances could not be started", state=PlanState.FAILED)
        else:
            await self.report("done", state=PlanState.DONE)


def instances_at(instances: InstanceWatch, spec: InstanceSpec) -> list[Instance]:
    """The instances on the GPUs of `spec`: one, or for a while also its predecessor."""
    return [i for i in instances.instances() if (i.node, tuple(i.gpus)) == (spec.node, spec.gpus)]
