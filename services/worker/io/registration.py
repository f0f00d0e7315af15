"""The instance's entry in the instances bucket."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
import torch
from msgspec.structs import replace
from nats.js.kv import KeyValue

from services.worker.engine.engine import Engine
from services.worker.settings import WorkerSettings
from shared.bus.client import Bus
from shared.bus.codec import encode
from shared.bus.errors import BUS_ERRORS
from shared.bus.subjects import HEARTBEAT_S
from shared.health import resident_bytes
from shared.messages.instances import Instance, InstanceState
from shared.service import connect_to_bus
from shared.tasks import pause, run_until

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 5.0  # for the thread of `startup_registration` to end; the entry expires anyway


@dataclass(slots=True)
class Registration:
    """Registers the instance while `run` runs."""

    _bus: Bus
    instance: Instance
    _engine: Engine | None = None  # its requests and its limit are registered; None: it does not exist yet
    _memory: Callable[[], tuple[int, int]] = lambda: (0, 0)  # as memory_use
    _drain_began_s: float | None = None  # by the monotonic clock, as the next one
    _verified_s: float | None = None  # of a quarantined instance: its last good canary
    _bucket: KeyValue | None = None

    async def renew(self) -> None:
        """Write the entry now. If the bus is unavailable, log it; the next renewal tries again."""
        draining_s = 0.0 if self._drain_began_s is None else time.monotonic() - self._drain_began_s
        self.instance = replace(self.instance, heartbeat=self.instance.heartbeat + 1, draining_s=draining_s)
        if self._verified_s is not None:  # a scheduler may begin to lead meanwhile
            self.instance = replace(self.instance, unverified_s=time.monotonic() - self._verified_s)
        if self._engine is not None:
            memory_bytes, max_memory_bytes = self._memory()
            self.instance = replace(
                self.instance,
                memory_bytes=memory_bytes,
                max_memory_bytes=max_memory_bytes,
                used_cache_tokens=self._engine.used_cache_tokens,
                used_prefix_tokens=self._engine.prefixes.used_tokens,
                requests=self._engine.num_resident,
                max_batch_tokens=self._engine.max_batch_tokens,
                cached_tokens=self._engine.prefixes.loaded_tokens,
                wanted_tokens=self._engine.prefixes.wanted_tokens,
            )
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await (await self._opened()).put(self.instance.instance_id, encode(self.instance))
            self._bus.renewed_s = time.monotonic()
        except BUS_ERRORS as error:
            log.warning("registration not renewed", error=repr(error))

    def count_connection(self) -> None:
        """The next renewal reports another connection: results of the last one may be lost."""
        self.instance = replace(self.instance, connections=self.instance.connections + 1)

    async def run(self) -> None:
        """Renew every HEARTBEAT_S until cancelled, from when the bucket exists."""
        await self._opened()
        while True:
            await self.renew()
            await pause(HEARTBEAT_S)

    async def drain(self, within_s: float = 0.0) -> None:
        """Accept no new requests from now on; the resident requests leave within `within_s` seconds. A quarantined
        instance stays quarantined."""
        if self.instance.state is InstanceState.QUARANTINED:
            return
        self._drain_began_s = time.monotonic()
        self.instance = replace(self.instance, state=InstanceState.DRAINING, drain_s=within_s)
        await self.renew()

    async def quarantine(self, reason: str, unverified_s: float) -> None:
        """Report that the instance computes wrong; its results of the last `unverified_s` seconds may be wrong."""
        self._verified_s = time.monotonic() - unverified_s
        self.instance = replace(self.instance, state=InstanceState.QUARANTINED, quarantine=reason)
        await self.renew()

    async def delete(self) -> None:
        """Delete the entry, so that the instance is gone at once."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await (await self._opened()).delete(self.instance.instance_id)
        except BUS_ERRORS as error:
            log.warning("registration not deleted; it expires", error=repr(error))

    async def _opened(self) -> KeyValue:
        """The bucket, opened once: others receive a heartbeat also while the bucket does not answer."""
        if self._bucket is None:
            self._bucket = await self._bus.bucket(self._bus.subjects.instances_bucket)
        return self._bucket


def memory_use(device: torch.device) -> tuple[int, int]:
    """Bytes of memory in use and in all: of a GPU, or on a CPU of this process and of the machine."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    return resident_bytes(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def startup_registration(settings: WorkerSettings, instance: Instance) -> Iterator[None]:
    """Keep the instance registered as starting while its model is loaded and measured. That blocks the main thread, so
    another thread renews the registration."""
    ended = threading.Event()
    starting = _register(settings, replace(instance, state=InstanceState.STARTING))
    registering = run_until(asyncio.to_thread(ended.wait), starting)
    thread = threading.Thread(target=asyncio.run, args=(registering,), name="starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(STOP_TIMEOUT_S)


async def _register(settings: WorkerSettings, instance: Instance) -> None:
    name = f"{instance.instance_id}-starting"
    async with await connect_to_bus(name, settings) as bus:
        await Registration(bus, instance).run()
