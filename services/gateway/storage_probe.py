"""Probes the bus's storage: whether it stores a message, how full its streams are, the free disk space."""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf

from services.gateway.ready_reasons import Storage
from shared.bus.client import Bus
from shared.bus.errors import bus_errors
from shared.bus.subjects import Subjects
from shared.bus.watch import Look
from shared.errors import RetryLater

PROBE_S = 2.0  # interval, and time limit, of probes
FAILURE_S = 30.0  # for which a request that the bus did not store is a problem, unless a later one was stored


class StorageProbe:
    def __init__(self, store_dir: str = "", on_probe: Callable[[Storage], None] = lambda _: None) -> None:
        """`store_dir`: the directory of NATS's store, if this machine has it; empty: its disk is unknown.
        `on_probe` receives each result."""
        self.last = Storage()
        self._store_dir = store_dir
        self._on_probe = on_probe

    async def probe(self, bus: Bus, look: Look) -> None:
        """Store a message. NATS may refuse writes to one stream only, so that a request that it did not store counts
        too. A stream that did not answer the look keeps its last state."""
        try:
            with bus_errors("store a probe"):
                async with asyncio.timeout(PROBE_S):
                    await bus.js.publish(bus.subjects.probes, timeout=PROBE_S)
            failed_s, failure = bus.store_failure or (-inf, "")
            problem = failure if time.monotonic() - failed_s < FAILURE_S else None
        except RetryLater as error:
            problem = str(error)
        kinds = limited_streams(bus.subjects)
        streams = {kinds[name]: state for name, state in look.streams.items() if name in kinds}
        self.last = Storage(problem=problem, streams={**self.last.streams, **streams}, free_bytes=self._free_bytes())
        self._on_probe(self.last)

    def _free_bytes(self) -> int | None:
        if self._store_dir:
            with suppress(OSError):
                return shutil.disk_usage(self._store_dir).free
        return None


def limited_streams(subjects: Subjects) -> Mapping[str, str]:
    """The streams and buckets that refuse messages when they are full: names of the streams, and their kinds."""
    kinds = {subjects.stream(kind): kind for kind in ("REQUESTS", "OUTCOMES", "BATCHES")}
    kinds |= {f"KV_{subjects.claims_bucket}": "claims", f"KV_{subjects.conversations_bucket}": "conversations"}
    return {**kinds, f"OBJ_{subjects.files_store}": "files"}
