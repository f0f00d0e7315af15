"""A sign of life for who watches a process from outside: a file whose age says when its event loop last turned."""

import asyncio
from pathlib import Path

TOUCH_S = 5.0


async def keep_alive_file(path: Path) -> None:
    """Touch the file every TOUCH_S seconds until cancelled. Raises: OSError if it cannot be written."""
    while True:
        path.touch()  # noqa: ASYNC240  (takes microseconds)
        await asyncio.sleep(TOUCH_S)
