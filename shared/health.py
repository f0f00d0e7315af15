"""Reports that a service's process runs, with its version and memory."""

import os
import resource
import socket
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from msgspec.structs import replace

from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS
from shared.messages.health import HEALTH_S, ServiceHealth
from shared.tasks import pause


def process_name() -> str:
    """The host and the id of this process, which no other process of the cell has."""
    return f"{socket.gethostname()}:{os.getpid()}"


def resident_bytes() -> int:
    """The resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def report_health(bus: Bus, service: str) -> None:
    """Publish the state of this process every HEALTH_S. When cancelled, publish a last message with `has_ended`."""
    health, began_s = ServiceHealth(process=process_name(), version=version("dilaserve")), time.monotonic()
    subject = bus.subjects.health(service)
    try:
        while True:
            if bus.nc.is_connected:  # otherwise the client would buffer the message and send it late
                uptime_s = time.monotonic() - began_s
                await bus.publish(subject, replace(health, memory_bytes=resident_bytes(), uptime_s=uptime_s))
            await pause(HEALTH_S)
    finally:
        with suppress(*BUS_ERRORS):
            await bus.publish(subject, replace(health, has_ended=True))
