"""The processes of a cell's services, by their last messages."""

import time
from dataclasses import dataclass

from msgspec.structs import asdict
from nats.aio.msg import Msg

from services.gateway.view_models import ResponseModel
from shared.bus.client import Bus, try_decode
from shared.bus.subjects import name_in
from shared.messages.health import HEALTH_S, ServiceHealth

SILENT_S = 3 * HEALTH_S  # silence after which a process counts as silent
FORGET_S = 300.0  # silence after which it is no longer shown


class ServiceView(ResponseModel):
    """A process of a service; workers are shown as instances."""

    service: str
    process: str  # host and process id
    state: str  # running, standby (a scheduler that does not lead) or silent
    silent_s: float  # since its last message
    uptime_s: float
    memory_bytes: int  # resident
    version: str


@dataclass(frozen=True, slots=True)
class _Received:
    health: ServiceHealth
    at_s: float  # of the monotonic clock


class ServiceWatch:
    def __init__(self) -> None:
        self._last: dict[tuple[str, str], _Received] = {}  # by service and process

    async def subscribe(self, bus: Bus) -> None:
        """Receive the messages of all services from now on."""
        await bus.nc.subscribe(bus.subjects.health("*"), cb=self._receive)

    def views(self, leader: str | None) -> list[ServiceView]:
        """Sorted by service; `leader` is the process of the scheduler that leads."""
        now_s = time.monotonic()
        self._last = {name: each for name, each in self._last.items() if now_s - each.at_s < FORGET_S}
        of_services = sorted(self._last.items())
        return [_view(service, each.health, now_s - each.at_s, leader) for (service, _), each in of_services]

    async def _receive(self, msg: Msg) -> None:
        health = try_decode(msg, ServiceHealth)
        if health is not None:
            self.receive(name_in(msg.subject), health)

    def receive(self, service: str, health: ServiceHealth) -> None:
        """Note the last message of a process of this service."""
        name = service, health.process
        if health.has_ended:
            self._last.pop(name, None)
        else:
            self._last[name] = _Received(health, time.monotonic())


def _view(service: str, health: ServiceHealth, silent_s: float, leader: str | None) -> ServiceView:
    state = "standby" if service == "scheduler" and health.process != leader else "running"
    if silent_s > SILENT_S:
        state = "silent"
    return ServiceView.model_validate(asdict(health) | {"service": service, "state": state, "silent_s": silent_s})
