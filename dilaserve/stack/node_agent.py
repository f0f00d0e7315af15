"""Starts and stops worker processes when the reconfigurator asks, over the bus."""

import asyncio
from collections.abc import Callable, Iterable

import structlog
from nats.aio.msg import Msg

from dilaserve.stack.process import Program
from dilaserve.stack.supervisor import Supervisor
from shared.bus.client import Bus, try_decode
from shared.bus.codec import encode
from shared.messages.launch import InstanceSpec, LaunchAction, LaunchOrder, LaunchReply

log = structlog.get_logger(__name__)


class NodeAgent:
    """The worker processes of one node. The supervisor keeps them running, so that one that dies is started again."""

    def __init__(
        self, supervisor: Supervisor, worker: Callable[[InstanceSpec], Program], started: Iterable[InstanceSpec]
    ) -> None:
        """`worker(spec)` is the program of an instance; `started` are those that the supervisor runs already."""
        self._supervisor = supervisor
        self._worker = worker
        self._specs = {spec.name: spec for spec in started}
        self._following: set[asyncio.Task[None]] = set()

    async def serve(self, bus: Bus, node: str) -> None:
        """Follow orders from now on."""
        await bus.nc.subscribe(bus.subjects.launch(node), cb=self._hear)

    async def _hear(self, msg: Msg) -> None:
        """Each order in a task of its own, as a stop takes its time."""
        order = try_decode(msg, LaunchOrder)
        if order is not None:
            task = asyncio.create_task(self._follow(order, msg))
            self._following.add(task)
            task.add_done_callback(self._following.discard)

    async def _follow(self, order: LaunchOrder, msg: Msg) -> None:
        error = ""
        match order:
            case LaunchOrder(action=LaunchAction.START, spec=InstanceSpec() as spec):
                error = self._start(spec)
            case LaunchOrder(action=LaunchAction.STOP, spec=InstanceSpec() as spec):
                await self._supervisor.stop_one(spec.name, order.grace_s)
                self._specs.pop(spec.name, None)
        await msg.respond(encode(LaunchReply(instances=list(self._specs.values()), error=error)))

    def _start(self, spec: InstanceSpec) -> str:
        """Returns: why it cannot be started; empty if it has been."""
        if spec.name in self._specs:
            return ""
        taken = [other.name for other in self._specs.values() if set(other.gpus) & set(spec.gpus)]
        if taken:
            return f"{spec.name} cannot be started: {', '.join(taken)} runs on its slots"
        log.info("starting an instance", instance=spec.name)
        self._specs[spec.name] = spec
        self._supervisor.start(self._worker(spec))
        return ""
