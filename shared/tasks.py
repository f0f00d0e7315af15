"""Ending tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.1


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Again until they end: Python 3.11's wait_for loses a cancellation that comes together with its result."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)
