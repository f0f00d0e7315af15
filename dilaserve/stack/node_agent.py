"""Starts and stops worker processes by the reconfigurator's launch orders."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from nats.aio.msg import Msg

from dilaserve.stack.process import Program
from dilaserve.stack.supervisor import Supervisor
from shared.bus.client import Bus, try_decode
from shared.bus.codec import encode
from shared.messages.launch import InstanceSpec, LaunchAction, LaunchOrder, LaunchReply

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class NodeAgent:
    """The worker processes of one node, which the supervisor restarts if they die."""

    _supervisor: Supervisor
    _worker: Callable[[InstanceSpec], Program]  # the program of an instance
    _specs: dict[str, InstanceSpec]  # running instances by name
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, bus: Bus, node: str) -> None:
        await bus.nc.subscribe(bus.subjects.launch(node), cb=self._receive)

    async def _receive(self, msg: Msg) -> None:
        """Execute each order in its own task, as a stop takes time."""
        if (order := try_decode(msg, LaunchOrder)) is not None:
            task = asyncio.create_task(self._execute(order, msg))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _execute(self, order: LaunchOrder, msg: Msg) -> None:
        error = ""
        match order:
            case LaunchOrder(action=LaunchAction.START, spec=InstanceSpec() as spec):
                error = self._start(spec)
            case LaunchOrder(action=LaunchAction.STOP, spec=InstanceSpec() as spec):
                await self._supervisor.stop_one(spec.name, order.grace_s)
                self._specs.pop(spec.name, None)
        await msg.respond(encode(LaunchReply(instances=list(self._specs.values()), error=error)))

    def _start(self, spec: InstanceSpec) -> str:
        """Returns: the error; empty if the instance runs."""
        if spec.name in self._specs:
            return ""
        occupying = [other.name for other in self._specs.values() if set(other.gpus) & set(spec.gpus)]
        if occupying:
            return f"{spec.name} cannot be started: {', '.join(occupying)} runs on its slots"
        log.info("starting an instance", instance=spec.name)
        self._specs[spec.name] = spec
        self._supervisor.start(self._worker(spec))
        return ""
