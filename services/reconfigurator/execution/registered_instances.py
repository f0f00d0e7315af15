"""Which instances are registered, heard from the renewals in their bucket."""

import asyncio
from dataclasses import dataclass

from nats.aio.msg import Msg

from shared.bus.client import Bus, last_token, try_decode
from shared.bus.subjects import INSTANCE_TTL_S
from shared.messages.instances import Instance, InstanceState
from shared.messages.launch import InstanceSpec


@dataclass(frozen=True, slots=True)
class _Known:
    instance: Instance
    renewed_s: float  # loop time


class RegisteredInstances:
    """The registered instances, by id."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    async def listen(self, bus: Bus) -> None:
        """A renewal is a message on the bucket's own subject: all instances are heard within HEARTBEAT_S."""
        await bus.nc.subscribe(f"$KV.{bus.subjects.instances_bucket}.>", cb=self._hear)

    def instances(self) -> list[Instance]:
        """Those renewed lately; the others are forgotten."""
        oldest_s = asyncio.get_running_loop().time() - INSTANCE_TTL_S
        self._known = {name: known for name, known in self._known.items() if known.renewed_s > oldest_s}
        return [known.instance for known in self._known.values()]

    def of(self, spec: InstanceSpec) -> list[Instance]:
        """Those at the place of `spec`: one, or for a while also what ran there before."""
        return [instance for instance in self.instances() if _stands_at(instance, spec)]

    async def _hear(self, msg: Msg) -> None:
        instance = try_decode(msg, Instance) if msg.data else None  # a deletion has no data
        if instance is None:
            self._known.pop(last_token(msg.subject), None)
        else:
            self._known[instance.instance_id] = _Known(instance, asyncio.get_running_loop().time())


def serves(instance: Instance) -> bool:
    """Whether it is ready and has its latency profile."""
    return instance.state is InstanceState.READY and bool(instance.profile)


def _stands_at(instance: Instance, spec: InstanceSpec) -> bool:
    return (instance.node, tuple(instance.gpus)) == (spec.node, spec.gpus)
