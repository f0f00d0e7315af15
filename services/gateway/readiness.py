"""Whether the gateway can take requests, and the reason if not."""

import time

from nats.aio.msg import Msg

from services.gateway.bus_connection import BusConnection
from shared.bus.client import Bus, try_decode
from shared.bus.instance_watch import InstanceWatch
from shared.errors import RetryLater
from shared.messages.instances import InstanceState
from shared.messages.plans import PlanRecord, PlanState

PLAN_TIMEOUT_S = 600.0  # a running plan without news for so long is abandoned


class Readiness:
    """Ready: connected to the bus, not draining, and an instance is ready or a running plan will start one."""

    def __init__(self, link: BusConnection, instances: InstanceWatch) -> None:
        self._link = link
        self._instances = instances
        self._plan_until_s = 0.0  # monotonic; a plan runs until then
        self.draining = False

    async def listen(self, bus: Bus) -> None:
        """Subscribe to plans."""
        await bus.nc.subscribe(bus.subjects.plans("*"), cb=self._receive_plan)

    def check(self) -> None:
        """Raises: RetryLater with the reason when no request can be taken."""
        if self.draining:
            raise RetryLater("the gateway is shutting down")
        _ = self._link.bus
        ready = any(instance.state is InstanceState.READY for instance in self._instances.instances())
        if not ready and time.monotonic() >= self._plan_until_s:
            raise RetryLater("no instance is ready")

    async def _receive_plan(self, msg: Msg) -> None:
        plan = try_decode(msg, PlanRecord)
        if plan is not None:
            self._plan_until_s = time.monotonic() + PLAN_TIMEOUT_S if plan.state is PlanState.RUNNING else 0.0
