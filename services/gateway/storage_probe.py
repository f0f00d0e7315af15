"""Looks at the bus's storage regularly: whether it stores a message, how full its streams are, the free disk space."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress

from services.gateway.ready_reasons import Storage, StreamUse
from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS, bus_errors
from shared.errors import RetryLater
from shared.tasks import pause

PROBE_S = 2.0  # interval
LIMIT_S = 2.0  # time limit of one look


class StorageProbe:
    def __init__(self, store_dir: str = "", on_probe: Callable[[Storage], None] = lambda _: None) -> None:
        """`store_dir`: the directory of NATS's store, if this machine has it; empty: its disk is unknown.
        `on_probe` receives each result."""
        self.last = Storage()
        self._store_dir = store_dir
        self._on_probe = on_probe

    async def run(self, bus: Bus) -> None:
        """Look until cancelled."""
        while True:
            self.last = await self._look(bus)
            self._on_probe(self.last)
            await pause(PROBE_S)

    async def _look(self, bus: Bus) -> Storage:
        uses = self.last.uses
        try:
            with bus_errors("store a probe"):
                async with asyncio.timeout(LIMIT_S):
                    await bus.js.publish(bus.subjects.probes, timeout=LIMIT_S)
            problem = None
        except RetryLater as error:
            problem = str(error)
        with suppress(*BUS_ERRORS):  # the probe reports them
            async with asyncio.timeout(LIMIT_S):
                uses = await _read_uses(bus)
        return Storage(problem=problem, uses=uses, free_bytes=self._free_bytes())

    def _free_bytes(self) -> int | None:
        if not self._store_dir:
            return None
        try:
            return shutil.disk_usage(self._store_dir).free
        except OSError:
            return None


async def _read_uses(bus: Bus) -> dict[str, StreamUse]:
    """The content of the streams and buckets that refuse messages when they are full. Raises: bus errors."""
    subjects = bus.subjects
    names = {kind: subjects.stream(kind) for kind in ("REQUESTS", "OUTCOMES", "BATCHES")}
    buckets = {"claims": subjects.claims_bucket, "conversations": subjects.conversations_bucket}
    names |= {kind: f"KV_{bucket}" for kind, bucket in buckets.items()} | {"files": f"OBJ_{subjects.files_store}"}
    infos = await asyncio.gather(*(bus.js.stream_info(name) for name in names.values()))
    return {
        kind: StreamUse(
            messages=info.state.messages,
            bytes=info.state.bytes,
            max_messages=info.config.max_msgs or 0,
            max_bytes=info.config.max_bytes or 0,
        )
        for kind, info in zip(names, infos, strict=True)
    }
