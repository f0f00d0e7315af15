"""A launcher whose instances only register."""

import asyncio

from msgspec.structs import replace
from nats.aio.msg import Msg

from services.reconfigurator.planning.launch_order import overlap
from shared.bus.client import Bus, try_decode
from shared.bus.codec import encode
from shared.errors import BadInput, RetryLater
from shared.messages.instances import Control, Instance, InstanceState
from shared.messages.launch import InstanceSpec
from shared.tasks import cancel
from tests.builders import instance

RENEWAL_S = 0.05


class RegisteringLauncher:
    """Each instance registers under a new id and renews that, until it is stopped."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._tasks: dict[InstanceSpec, asyncio.Task[None]] = {}
        self._started = 0
        self.never_serving: set[InstanceSpec] = set()  # instances that never become ready
        self.impossible: set[InstanceSpec] = set()  # instances that cannot be started
        self.failing: set[InstanceSpec] = set()  # instances whose start fails each time with RetryLater
        self.unstoppable: set[InstanceSpec] = set()  # instances whose stop fails each time with RetryLater
        self.refused = 0  # failed stops
        self.down: set[str] = set()  # nodes that are not available
        self.renewal_s = RENEWAL_S
        self.held = 0  # requests that an instance holds when its drain begins
        self.done: list[str] = []

    async def nodes(self) -> list[str]:
        return [node for node in ("a", "b") if node not in self.down]

    async def running(self) -> list[InstanceSpec]:
        return [spec for spec in self._tasks if spec.node not in self.down]

    async def start(self, spec: InstanceSpec) -> None:
        if spec in self.impossible:
            raise BadInput("no such device")
        if spec in self.failing:
            raise RetryLater("the Docker Engine failed: no driver")
        assert not any(overlap(spec, other) for other in self._tasks), "its GPUs are free"
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
        if spec in self.unstoppable:
            self.refused += 1
            raise RetryLater("the Docker Engine failed: it is busy")
        self.done.append(f"stop {spec.gpus}")
        await self.lose(spec)

    async def lose(self, spec: InstanceSpec) -> None:
        """Kill the process: its registration stays."""
        await cancel([self._tasks.pop(spec)])

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
