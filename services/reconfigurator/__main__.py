"""Wiring: read settings, connect, monitor, drain."""

import asyncio
import os
import signal
import sys

from sqlalchemy.ext.asyncio import AsyncEngine

from services.reconfigurator.monitor import monitor
from services.reconfigurator.settings import ReconfiguratorSettings
from shared.bus import Bus
from shared.database import open_database
from shared.errors import BadInput
from shared.logs import configure_logs
from shared.settings import read_settings


def main() -> int:
    """Run the reconfigurator until SIGTERM. Returns: the exit status."""
    try:
        settings = read_settings(ReconfiguratorSettings, os.environ)
        configure_logs("reconfigurator", level=settings.log_level, form=settings.log_format)
        engine = open_database(settings.database_url)
    except BadInput as error:
        sys.stderr.write(f"reconfigurator: {error.message}\n")
        return 2
    asyncio.run(serve(settings, engine))
    return 0


async def serve(settings: ReconfiguratorSettings, engine: AsyncEngine) -> None:
    """Monitor until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    bus = await Bus.connect(settings.nats_url, settings.cell, name="reconfigurator", alive_file=settings.alive_file)
    await monitor(bus, engine, stop)
    await engine.dispose()
    await bus.close()


if __name__ == "__main__":
    sys.exit(main())
