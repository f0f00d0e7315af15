"""Which instances there are, from their bucket: seen when renewed, gone when deleted or silent for too long."""

import asyncio
from dataclasses import dataclass

import structlog
from msgspec.structs import replace
from nats.aio.msg import Msg

from services.scheduler.events import InstanceLost, InstanceUpdated
from services.scheduler.io.event_queue import EventQueue
from shared.bus.client import Bus, last_token
from shared.bus.codec import decode
from shared.bus.subjects import HEARTBEAT_S, INSTANCE_TTL_S
from shared.errors import BadInput
from shared.messages.instances import Instance, InstanceState
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile

log = structlog.get_logger(__name__)

REPLACED_TTL_S = 2 * HEARTBEAT_S  # silence allowed to an instance since which another of its name has come


@dataclass(slots=True)
class _Known:
    instance: Instance
    came_s: float  # loop time, both
    renewed_s: float


class InstanceEvents:
    """Turns the bucket's updates into events; puts only changes into the inbox, not every heartbeat."""

    def __init__(self, bus: Bus, model_name: str, inbox: EventQueue, *, needs_profile: bool, caching: bool) -> None:
        self._bus = bus
        self._model_name = model_name
        self._inbox = inbox
        self._needs_profile = needs_profile
        self._caching = caching
        self._known: dict[str, _Known] = {}
        self._refused: set[str] = set()

    async def run(self) -> None:
        """Listen until cancelled.

        A renewal is a message on the bucket's own subject, so a plain subscription hears every instance within
        HEARTBEAT_S, and goes on by itself after the server was away; a watcher of the bucket does not.
        """
        await self._bus.nc.subscribe(f"$KV.{self._bus.subjects.instances_bucket}.>", cb=self._hear)
        await self._expire_forever()

    async def _hear(self, msg: Msg) -> None:
        self._update(last_token(msg.subject), msg.data or None)  # a deletion has no data

    def _update(self, instance_id: str, value: bytes | None) -> None:
        if value is None:
            self._remove(instance_id)
            return
        try:
            instance = decode(value, Instance)
        except BadInput as error:
            log.warning("unreadable registration", instance=instance_id, error=error.message)
            return
        if instance.state is InstanceState.STARTING or not self._is_usable(instance):
            return
        known, now_s = self._known.get(instance_id), asyncio.get_running_loop().time()
        self._known[instance_id] = _Known(instance, known.came_s if known else now_s, now_s)
        if known is None or not _same(known.instance, instance):
            log.info("instance seen", instance=instance_id, tp=instance.tp_degree, state=instance.state.value)
            if known is None and instance.cache_tokens and not self._caching:
                log.warning("instance has a cache that is not used: DILASERVE_CACHE is none here", instance=instance_id)
            self._inbox.put(InstanceUpdated(instance))

    def _is_usable(self, instance: Instance) -> bool:
        """Whether it serves our model and brings what the policy needs; said once where not."""
        reason = self._objection(instance)
        if reason and instance.instance_id not in self._refused:
            self._refused.add(instance.instance_id)
            log.warning("instance refused", instance=instance.instance_id, reason=reason)
        return not reason

    def _objection(self, instance: Instance) -> str:
        if instance.model.name != self._model_name:
            return f"it serves the model {instance.model.name}, not {self._model_name}"
        if not instance.profile:
            return "it brings no latency profile" if self._needs_profile else ""
        try:
            LatencyProfile.from_csv(instance.profile).latency_s(instance.tp_degree, 1, StepKind.RECOMPUTE)
        except BadInput as error:
            return error.message
        return ""

    def _remove(self, instance_id: str) -> None:
        if self._known.pop(instance_id, None) is not None:
            self._inbox.put(InstanceLost(instance_id))

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S / 4)
            self._expire(asyncio.get_running_loop().time())

    def _expire(self, now_s: float) -> None:
        newest: dict[str, float] = {}
        for known in self._known.values():
            name = _name(known.instance)
            newest[name] = max(newest.get(name, 0.0), known.came_s)
        for instance_id, known in list(self._known.items()):
            replaced = newest[_name(known.instance)] > known.renewed_s
            if now_s - known.renewed_s > (REPLACED_TTL_S if replaced else INSTANCE_TTL_S):
                self._remove(instance_id)


def _name(instance: Instance) -> str:
    """What stays the same when a worker is started again: its id is `<name>-<random>`."""
    return instance.instance_id.rpartition("-")[0]


def _same(a: Instance, b: Instance) -> bool:
    """Whether nothing but the heartbeat differs."""
    return replace(a, heartbeat=0, requests=0) == replace(b, heartbeat=0, requests=0)
