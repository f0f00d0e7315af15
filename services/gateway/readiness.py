"""Whether the gateway can accept requests, and the reason if not."""

import time

from nats.aio.msg import Msg

from services.gateway.bus_connection import BusConnection
from shared.bus.client import Bus, try_decode
from shared.bus.instance_watch import InstanceWatch
from shared.errors import RetryLater
from shared.messages.instances import InstanceState
from shared.messages.plans import PlanRecord, PlanState

PLAN_TIMEOUT_S = 600.0  # silence after which a running plan counts as abandoned


class Readiness:
    """Ready: connected to the bus, not draining, and an instance is ready or a running plan will start one."""

    def __init__(self, connection: BusConnection, model_name: str) -> None:
        self.instances = InstanceWatch(accept=lambda instance: instance.model.name == model_name)
        self.draining = False
        self._connection = connection
        self._plan_until_s = 0.0  # monotonic clock; until then a plan counts as running

    async def subscribe(self, bus: Bus) -> None:
        """Receive heartbeats and plans."""
        await self.instances.start(bus)
        await bus.nc.subscribe(bus.subjects.plans("*"), cb=self._receive_plan)

    def check(self) -> None:
        """Raises: RetryLater with the reason if no request can be accepted."""
        if self.draining:
            raise RetryLater("the gateway is shutting down")
        _ = self._connection.bus
        ready = any(instance.state is InstanceState.READY for instance in self.instances.instances())
        if not ready and time.monotonic() >= self._plan_until_s:
            raise RetryLater("no instance is ready")

    async def _receive_plan(self, msg: Msg) -> None:
        plan = try_decode(msg, PlanRecord)
        if plan is not None and plan.state is not PlanState.STAYED:  # a decision to stay ends no running plan
            self._plan_until_s = time.monotonic() + PLAN_TIMEOUT_S if plan.state is PlanState.RUNNING else 0.0
