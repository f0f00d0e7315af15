"""Polls for a condition that has no event."""

import asyncio
from collections.abc import Awaitable, Callable

LIMIT_S = 20.0


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = LIMIT_S) -> None:
    """Poll until `holds` returns true. Raises: TimeoutError after `within_s` seconds."""
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110  (the state is another process's)
            await asyncio.sleep(0.05)


async def reached(condition: Callable[[], bool], within_s: float = LIMIT_S) -> None:
    """Poll until `condition` returns true. Raises: TimeoutError after `within_s` seconds."""

    async def holds() -> bool:
        return condition()

    await until(holds, within_s)
