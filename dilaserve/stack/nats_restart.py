"""Restarts the embedded NATS server when it no longer writes a stream, as soon as its disk has room again.

After a failed write, on a full disk for example, NATS refuses every further write to that stream until it restarts. A
cluster chooses another leader for the stream instead, so that this is for a server that runs alone.
"""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import structlog
from nats.js.errors import ServerError

from dilaserve.stack.data_dir import MIN_FREE_BYTES
from dilaserve.stack.supervisor import Supervisor
from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS
from shared.bus.subjects import stream_names
from shared.tasks import pause

CHECK_S = 10.0  # interval of checks, each of which asks NATS about every stream

log = structlog.get_logger(__name__)


async def restart_when_unwritable(supervisor: Supervisor, program: str, bus: Bus, store: Path) -> None:
    """Check until cancelled. `program`: the name of the server that runs alone; `store`: its directory."""
    while True:
        await pause(CHECK_S)
        errors = await write_errors(bus)
        if errors and shutil.disk_usage(store).free >= MIN_FREE_BYTES:
            log.warning("restarting NATS, which no longer writes these streams", errors=dict(errors))
            supervisor.end(program)


async def write_errors(bus: Bus) -> Mapping[str, str]:
    """The errors of the cell's streams that NATS no longer writes, by name of the stream.

    It purges a subject that no message has: this removes nothing, and NATS refuses it where it no longer writes.
    """

    async def error_of(stream: str) -> str | None:
        try:
            await bus.js.purge_stream(stream, subject=bus.subjects.nothing)
        except ServerError as error:
            return error.description or "unknown"
        except BUS_ERRORS:
            pass  # the server is unavailable, or the stream is not set up yet
        return None

    streams = sorted(stream_names(bus.subjects))
    errors = await asyncio.gather(*map(error_of, streams))
    return {stream: error for stream, error in zip(streams, errors, strict=True) if error}
