"""Turns changes of the cell's instances into events of the core."""

from collections.abc import Callable
from functools import lru_cache

import structlog

from services.scheduler.events import InstanceLost, InstanceQuarantined, InstanceUpdated
from services.scheduler.io.event_queue import EventQueue
from shared.bus.instance_watch import InstanceWatch
from shared.errors import BadInput
from shared.messages.instances import Instance, InstanceState
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile

log = structlog.get_logger(__name__)


class InstanceEvents:
    """Puts new, changed and lost instances into an event queue; rejects instances that cannot serve in the cell."""

    def __init__(self, model_name: str, *, needs_profile: bool, caching: bool) -> None:
        self._model_name = model_name
        self._queue: EventQueue | None = None  # None: on standby
        self._needs_profile = needs_profile
        self._caching = caching
        self._warned: set[str] = set()  # ids
        self._quarantined: set[str] = set()  # ids
        self.on_quarantine: Callable[[Instance], None] = lambda _: None  # receives each quarantined instance once
        self.watch = InstanceWatch(accept=self._accept)

    def report_to(self, queue: EventQueue) -> None:
        """Put the present instances into the queue, and from now on every change."""
        present, self._queue = self.watch.instances(), queue
        self.watch.on_update = lambda instance: self._update(instance, queue)
        self.watch.on_loss = lambda instance_id: queue.put(InstanceLost(instance_id))
        for instance in present:
            self._update(instance, queue)

    def worker_versions(self) -> list[int]:
        """The versions of the messages of the present instances."""
        return [instance.version for instance in self.watch.instances()]

    def _accept(self, instance: Instance) -> bool:
        if instance.state is InstanceState.STARTING:
            return False
        if instance.state is InstanceState.QUARANTINED:
            self._quarantine(instance)
            return False
        reason = self._rejection(instance)
        if reason:
            self._warn_once(instance, "instance rejected", reason)
        return not reason

    def _rejection(self, instance: Instance) -> str:
        """Why the instance cannot serve here; empty if it can."""
        if instance.model.name != self._model_name:
            return f"it serves the model {instance.model.name}, not {self._model_name}"
        if not instance.profile:
            return "it has no latency profile" if self._needs_profile else ""
        return _profile_error(instance.profile, instance.tp_degree)

    def _quarantine(self, instance: Instance) -> None:
        instance_id = instance.instance_id
        if self._queue is None:  # it is reported when this scheduler leads, by the next heartbeat
            return
        if instance_id not in self._quarantined and instance.model.name == self._model_name:
            self._quarantined.add(instance_id)
            log.error("instance quarantined", instance=instance_id, reason=instance.quarantine)
            self._queue.put(InstanceQuarantined(instance_id))
            self.on_quarantine(instance)

    def _update(self, instance: Instance, queue: EventQueue) -> None:
        log.info("instance updated", instance=instance.instance_id, tp=instance.tp_degree, state=instance.state.value)
        if instance.cache_tokens and not self._caching:
            self._warn_once(instance, "instance has an unused cache", "the scheduler runs with DILASERVE_CACHE=none")
        queue.put(InstanceUpdated(instance))

    def _warn_once(self, instance: Instance, event: str, reason: str) -> None:
        if instance.instance_id not in self._warned:
            self._warned.add(instance.instance_id)
            log.warning(event, instance=instance.instance_id, reason=reason)


@lru_cache
def _profile_error(profile: str, tp_degree: int) -> str:
    """Why the profile has no latencies for this TP degree; empty if it has. Each heartbeat repeats the profile."""
    try:
        LatencyProfile.from_csv(profile).latency_s(tp_degree, 1, StepKind.RECOMPUTE)
    except BadInput as error:
        return error.message
    return ""
