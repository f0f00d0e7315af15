"""Tracks a cell's instances by the heartbeats in their bucket."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace
from nats.aio.msg import Msg

from shared.bus.client import Bus, last_token, try_decode
from shared.bus.subjects import HEARTBEAT_S, INSTANCE_TTL_S
from shared.messages.instances import Instance

log = structlog.get_logger(__name__)

VOLATILE = (  # fields that a busy instance changes with every heartbeat
    "heartbeat", "requests", "draining_s", "unverified_s", "memory_bytes",
    "used_cache_tokens", "used_prefix_tokens", "wanted_tokens", "cached_tokens",
)  # fmt: skip
STALL_S = HEARTBEAT_S  # time without a look, while `run` runs, after which this process was stalled
REPLACED_TTL_S = 2 * HEARTBEAT_S  # silence after which an instance is lost if a newer one has its name


@dataclass(slots=True)
class _Known:
    instance: Instance
    registered_s: float  # clock seconds, both
    renewed_s: float


@dataclass(slots=True, kw_only=True)
class InstanceWatch:
    """The instances that were renewed within INSTANCE_TTL_S. Time without a connection to the bus does not count,
    nor, while `run` runs, time in which this process was stalled, such as on a machine that is paused.

    A heartbeat is a message on the bucket's own subject. A plain subscription receives one from every instance within
    HEARTBEAT_S and continues after a reconnect; a watcher of the bucket does not.
    """

    accept: Callable[[Instance], bool] = lambda _: True  # an instance that it rejects is treated as absent
    on_update: Callable[[Instance], None] = lambda _: None  # receives a new or changed instance
    on_loss: Callable[[str], None] = lambda _: None  # receives the id of an instance that was deleted or fell silent
    clock: Callable[[], float] = time.monotonic  # seconds
    is_connected: Callable[[], bool] = lambda: True  # to the bus
    _known: dict[str, _Known] = field(default_factory=dict, init=False)
    _looked_s: float | None = field(
        default=None, init=False
    )  # clock seconds of the last look; None: `run` does not run

    async def start(self, bus: Bus) -> None:
        """Subscribe to the heartbeats."""
        self.is_connected = lambda: bus.nc.is_connected
        await bus.nc.subscribe(f"$KV.{bus.subjects.instances_bucket}.>", cb=self.receive)

    async def run(self) -> None:
        """Report lost instances until cancelled."""
        self._looked_s = self.clock()
        while True:
            await asyncio.sleep(HEARTBEAT_S / 4)
            self._expire()

    def instances(self) -> list[Instance]:
        """The present instances."""
        self._expire()
        return [known.instance for known in self._known.values()]

    async def receive(self, msg: Msg) -> None:
        """Apply one message of the bucket: a heartbeat, or a deletion, which has no data."""
        instance_id = last_token(msg.subject)
        if not msg.data:
            self._remove(instance_id)
            return
        instance = try_decode(msg, Instance)
        if instance is None:
            return
        if instance.instance_id != instance_id:
            log.warning("registration under another id dropped", subject=msg.subject, instance=instance.instance_id)
            return
        if not self.accept(instance):
            self._remove(instance_id)
            return
        known, now_s = self._known.get(instance_id), self.clock()
        self._known[instance_id] = _Known(instance, known.registered_s if known else now_s, now_s)
        if known is None or _content(known.instance) != _content(instance):
            self.on_update(instance)

    def _expire(self) -> None:
        now_s, newest_s = self.clock(), dict[str, float]()
        if self._looked_s is not None:
            stalled_s, self._looked_s = now_s - self._looked_s, now_s
            for known in self._known.values() if stalled_s > STALL_S else ():
                known.renewed_s += stalled_s
        if not self.is_connected():
            for known in self._known.values():
                known.renewed_s = now_s
            return
        for known in self._known.values():
            name = _name(known.instance)
            newest_s[name] = max(newest_s.get(name, 0.0), known.registered_s)
        for instance_id, known in list(self._known.items()):
            is_replaced = newest_s[_name(known.instance)] > known.renewed_s
            if now_s - known.renewed_s > (REPLACED_TTL_S if is_replaced else INSTANCE_TTL_S):
                self._remove(instance_id)

    def _remove(self, instance_id: str) -> None:
        if self._known.pop(instance_id, None) is not None:
            self.on_loss(instance_id)


def _name(instance: Instance) -> str:
    """The part of the id `<name>-<random>` that a restarted worker keeps."""
    return instance.instance_id.rpartition("-")[0]


def _content(instance: Instance) -> Instance:
    """The registration without VOLATILE."""
    return replace(instance, **dict.fromkeys(VOLATILE, 0))
