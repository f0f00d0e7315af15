"""A liveness file for health checks: its age is the time since the event loop last ran."""

import asyncio
from pathlib import Path

TOUCH_S = 5.0


async def keep_alive_file(path: Path) -> None:
    """Touch the file every TOUCH_S seconds until cancelled. Raises: OSError if it cannot be written."""
    while True:
        path.touch()  # noqa: ASYNC240  (takes microseconds)
        await asyncio.sleep(TOUCH_S)
