"""Which instances are ready, heard from the renewals of their registrations.

A renewal is a message on the bucket's own subject, so a plain subscription hears every instance within
HEARTBEAT_S and goes on after a reconnect by itself.
"""

from collections.abc import Callable

from nats.aio.msg import Msg

from shared.bus import Bus, last_token, read_or_none
from shared.messages.instances import Instance, InstanceState
from shared.subjects import INSTANCE_TTL_S

Clock = Callable[[], float]


class Instances:
    """The ready instances of a cell that serve one model."""

    def __init__(self, model_name: str, clock: Clock) -> None:
        """`clock` gives seconds that never go back."""
        self._model_name = model_name
        self._clock = clock
        self._renewed_s: dict[str, float] = {}

    async def listen(self, bus: Bus) -> None:
        await bus.nc.subscribe(f"$KV.{bus.subjects.instances_bucket}.>", cb=self._hear)

    def ready(self) -> list[str]:
        """Ids of the instances that were renewed lately."""
        oldest_s = self._clock() - INSTANCE_TTL_S
        self._renewed_s = {name: at_s for name, at_s in self._renewed_s.items() if at_s > oldest_s}
        return list(self._renewed_s)

    async def _hear(self, msg: Msg) -> None:
        name = last_token(msg.subject)
        instance = read_or_none(msg, Instance) if msg.data else None  # a deletion has no data
        if instance and instance.state is InstanceState.READY and instance.model.name == self._model_name:
            self._renewed_s[name] = self._clock()
        else:
            self._renewed_s.pop(name, None)
