"""Which instances there are, heard from the renewals of their registrations.

A renewal is a message on the bucket's own subject, so a plain subscription hears every instance within
HEARTBEAT_S and goes on after a reconnect by itself.
"""

from collections.abc import Callable

from nats.aio.msg import Msg

from shared.bus.client import Bus, last_token, try_decode
from shared.bus.subjects import INSTANCE_TTL_S
from shared.messages.instances import Instance, InstanceState
from shared.messages.plans import PlanRecord, PlanState

Clock = Callable[[], float]

CHANGE_S = 600.0  # without news of a plan under way, nobody carries it out any more


class Instances:
    """The instances of a cell that serve one model."""

    def __init__(self, model_name: str, clock: Clock) -> None:
        """`clock` gives seconds that never go back."""
        self._model_name = model_name
        self._clock = clock
        self._renewed: dict[str, tuple[float, Instance]] = {}
        self._changing_until_s = 0.0  # by the clock

    async def listen(self, bus: Bus) -> None:
        await bus.nc.subscribe(f"$KV.{bus.subjects.instances_bucket}.>", cb=self._hear)
        await bus.nc.subscribe(bus.subjects.plans("*"), cb=self._hear_plan)

    def known(self) -> list[Instance]:
        """Those that were renewed lately."""
        oldest_s = self._clock() - INSTANCE_TTL_S
        self._renewed = {name: known for name, known in self._renewed.items() if known[0] > oldest_s}
        return [instance for _, instance in self._renewed.values()]

    def ready(self) -> list[str]:
        """Ids of those that take requests."""
        return [instance.instance_id for instance in self.known() if instance.state is InstanceState.READY]

    def changing(self) -> bool:
        """Whether the reconfigurator is replacing instances, so that there will be ready ones soon."""
        return self._clock() < self._changing_until_s

    async def _hear_plan(self, msg: Msg) -> None:
        plan = try_decode(msg, PlanRecord)
        if plan is not None:
            self._changing_until_s = self._clock() + CHANGE_S if plan.state is PlanState.RUNNING else 0.0

    async def _hear(self, msg: Msg) -> None:
        name = last_token(msg.subject)
        instance = try_decode(msg, Instance) if msg.data else None  # a deletion has no data
        if instance and instance.model.name == self._model_name:
            self._renewed[name] = (self._clock(), instance)
        else:
            self._renewed.pop(name, None)
