"""Ending tasks."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

AGAIN_S = 0.1

T = TypeVar("T")


async def run_until_stopped(stop: asyncio.Event, coming: Coroutine[Any, Any, T]) -> T | None:
    """What comes, once it has; None if `stop` is set before. Raises: what `coming` raises."""
    tasks = asyncio.ensure_future(coming), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Again until they end: Python 3.11's wait_for loses a cancellation that comes together with its result."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)
