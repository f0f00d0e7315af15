"""Carries out a plan: one action after another, each found from what really runs (transition.py).

So whatever happens on the way (an instance that does not start, one that dies, a reconfigurator that is started again),
the cluster ends in the target, or where a launch failed in what stood there before.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass

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
from shared.bus.client import Bus
from shared.bus.instance_watch import InstanceWatch
from shared.errors import BadInput, RetryLater
from shared.messages.instances import Control, Instance, InstanceState
from shared.messages.launch import InstanceSpec
from shared.messages.plans import PlanEvent, PlanRecord, PlanState

log = structlog.get_logger(__name__)

LOOK_S = 0.2  # how soon a change is noticed
AWAY_S = 2.0  # between attempts while a launcher's engine does not answer
HEARD_S = 3.0  # beyond its time to drain: how long an instance may take to say that it holds nothing

Report = Callable[[PlanRecord], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """Seconds."""

    drain_s: float
    start_s: float
    stop_s: float


class Executor:
    """Brings the cluster to one target after another."""

    def __init__(self, bus: Bus, launcher: Launcher, instances: InstanceWatch, limits: ExecutorLimits) -> None:
        self._bus = bus
        self._launcher = launcher
        self._instances = instances
        self._limits = limits

    async def run(self, record: PlanRecord, report: Report) -> None:
        """Carry out a plan, from whatever of it has been done. `report` hears of every event; cancelled, it may be run
        again with the record reported last."""
        run = _Run(record, report)
        while True:
            try:
                if not await self._step(run):
                    break
            except RetryLater as error:
                log.warning("waiting for the launcher", error=str(error))
                await asyncio.sleep(AWAY_S)
        state = PlanState.FAILED if run.failed else PlanState.DONE
        await run.tell("some instances could not be started" if run.failed else "done", state)

    async def _step(self, run: "_Run") -> bool:
        """Do the next thing. Returns: False if there is none. Raises: RetryLater if the launcher does not answer."""
        running = await self._launcher.running()
        wanted = without_failed(run.record.target, run.record.before, run.failed)
        action = next_action(wanted, running, self._serving(running, run))
        if action is None:
            return False
        try:
            await self._do(action, run)
        except RetryLater:
            run.put_off.setdefault(action, asyncio.get_running_loop().time())
            raise
        run.put_off.pop(action, None)
        return True

    async def _do(self, action: Action, run: "_Run") -> None:
        match action:
            case StopInstance(spec):
                await self._stop(spec, run)
            case StartInstance(spec):
                await self._start(spec, run)
            case AwaitReady(specs):
                await self._await(specs, run)

    def _serving(self, running: Collection[InstanceSpec], run: "_Run") -> list[InstanceSpec]:
        return [
            spec
            for spec in running
            if any(serves(i) and i.instance_id not in run.replaced for i in instances_at(self._instances, spec))
        ]

    async def _stop(self, spec: InstanceSpec, run: "_Run") -> None:
        await run.announce(StopInstance(spec), f"drain {spec.name}")
        await self._drain(spec)
        await run.announce(StopInstance(spec), f"stop {spec.name}")
        await self._launcher.stop(spec, self._limits.stop_s)
        run.note_gone(spec, self._instances)

    async def _start(self, spec: InstanceSpec, run: "_Run") -> None:
        run.note_gone(spec, self._instances)
        await run.announce(StartInstance(spec), f"start {spec.name}")
        try:
            await self._launcher.start(spec)
        except BadInput as error:
            await run.fail(spec, error.message)
        except RetryLater as error:  # a launcher that answers, and fails at this alone
            since_s = run.put_off.get(StartInstance(spec))
            if since_s is None or asyncio.get_running_loop().time() - since_s <= self._limits.start_s:
                raise
            await run.fail(spec, str(error))

    async def _await(self, specs: Iterable[InstanceSpec], run: "_Run") -> None:
        now_s = asyncio.get_running_loop().time()
        late = [spec for spec in specs if now_s - run.awaited.setdefault(spec, now_s) > self._limits.start_s]
        for spec in late:
            await run.fail(spec, f"it does not serve {self._limits.start_s:g} s after its launch")
        if not late:
            await asyncio.sleep(LOOK_S)

    async def _drain(self, spec: InstanceSpec) -> None:
        """Until the instance says that it holds no request, or its time is up."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + self._limits.drain_s + HEARD_S
        while now_s() < deadline_s:
            held = instances_at(self._instances, spec)
            for instance in held:
                if instance.state is InstanceState.READY:  # it has not heard of it
                    order = Control(action="drain", within_s=self._limits.drain_s)
                    await self._bus.publish(self._bus.subjects.control(instance.instance_id), order)
            if not any(i.requests or i.state is InstanceState.READY for i in held):
                return
            await asyncio.sleep(LOOK_S)


class _Run:
    """One plan under way."""

    def __init__(self, record: PlanRecord, report: Report) -> None:
        self.record = record
        self.failed: set[InstanceSpec] = set()
        self.awaited: dict[InstanceSpec, float] = {}  # since when, loop time
        self.put_off: dict[Action, float] = {}  # what the launcher has not done yet, and since when, loop time
        self.replaced: set[str] = set()  # ids of instances that have ended, whose registrations may still be there
        self._report = report

    async def announce(self, action: Action, text: str) -> None:
        """Tell of it, but not again where it was put off."""
        if action not in self.put_off:
            await self.tell(text)

    async def tell(self, text: str, state: PlanState = PlanState.RUNNING) -> None:
        """Note and report what is done."""
        now_s = time.time()
        log.info(text, plan=self.record.plan_id)
        events = [*self.record.events, PlanEvent(at_s=now_s, text=text)]
        ended_s = None if state is PlanState.RUNNING else now_s
        self.record = replace(self.record, events=events, state=state, ended_s=ended_s)
        await self._report(self.record)

    async def fail(self, spec: InstanceSpec, why: str) -> None:
        self.failed.add(spec)
        await self.tell(f"{spec.name} failed: {why}")

    def note_gone(self, spec: InstanceSpec, instances: InstanceWatch) -> None:
        """What is registered at this place now is no more; whoever comes after has another id."""
        self.replaced.update(instance.instance_id for instance in instances_at(instances, spec))
        self.awaited.pop(spec, None)


def instances_at(instances: InstanceWatch, spec: InstanceSpec) -> list[Instance]:
    """The instances on the GPUs of `spec`: one, or for a while also the one that ran there before."""
    return [
        instance
        for instance in instances.instances()
        if (instance.node, tuple(instance.gpus)) == (spec.node, spec.gpus)
    ]


def serves(instance: Instance) -> bool:
    """Whether the instance is ready and has its latency profile."""
    return instance.state is InstanceState.READY and bool(instance.profile)
