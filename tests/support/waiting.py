"""Polls for a condition that has no event."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

LIMIT_S = 20.0
T = TypeVar("T")


async def eventually(read: Callable[[], Awaitable[T]], holds: Callable[[T], object], within_s: float = LIMIT_S) -> T:
    """Read until the condition holds. Returns: the value read last. Raises: TimeoutError after `within_s` seconds."""
    async with asyncio.timeout(within_s):
        while not holds(found := await read()):  # noqa: ASYNC110  (the state is another process's)
            await asyncio.sleep(0.02)
    return found


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = LIMIT_S) -> None:
    """Poll until `holds` returns true. Raises: TimeoutError after `within_s` seconds."""
    await eventually(holds, bool, within_s)


async def reached(condition: Callable[[], object], within_s: float = LIMIT_S) -> None:
    """Poll until `condition` returns true. Raises: TimeoutError after `within_s` seconds."""

    async def holds() -> bool:
        return bool(condition())

    await until(holds, within_s)
