"""The processes of a cell's services, by their last messages."""

import time
from operator import itemgetter

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


class ServiceWatch:
    def __init__(self) -> None:
        # By service and process: the message, and its time of the monotonic clock
        self._last: dict[tuple[str, str], tuple[ServiceHealth, float]] = {}

    async def subscribe(self, bus: Bus) -> None:
        await bus.nc.subscribe(bus.subjects.health("*"), cb=self._receive)

    def views(self, leader: str | None) -> list[ServiceView]:
        """Sorted by service; `leader` is the process of the scheduler that leads."""
        now_s = time.monotonic()
        self._last = {name: last for name, last in self._last.items() if now_s - last[1] < FORGET_S}
        by_name = sorted(self._last.items(), key=itemgetter(0))
        return [_view(service, health, now_s - at_s, leader) for (service, _), (health, at_s) in by_name]

    async def _receive(self, msg: Msg) -> None:
        if (health := try_decode(msg, ServiceHealth)) is not None:
            self.receive(name_in(msg.subject), health)

    def receive(self, service: str, health: ServiceHealth) -> None:
        name = service, health.process
        if health.has_ended:
            self._last.pop(name, None)
        else:
            self._last[name] = health, time.monotonic()


def _view(service: str, health: ServiceHealth, silent_s: float, leader: str | None) -> ServiceView:
    state = "standby" if service == "scheduler" and health.process != leader else "running"
    if silent_s > SILENT_S:
        state = "silent"
    return ServiceView.model_validate(asdict(health) | {"service": service, "state": state, "silent_s": silent_s})
