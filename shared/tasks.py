"""Stops, cancels and delays tasks."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

CANCEL_AGAIN_S = 0.1

T = TypeVar("T")


async def run_until_stopped(stop: asyncio.Event, coroutine: Coroutine[Any, Any, T]) -> T | None:
    """As `run_until`, until `stop` is set."""
    return await run_until(stop.wait(), coroutine)


async def run_until(end: Coroutine[Any, Any, object], work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None if `end` ends first. Raises: the errors of `work`."""
    tasks = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        await cancel(tasks)


async def run_together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all until they end, one fails, or this is cancelled; then cancel the others, repeatedly as a TaskGroup does
    not. Raises: the first error."""
    await _run_until(asyncio.FIRST_EXCEPTION, coroutines)


async def run_beside(main: Coroutine[Any, Any, object], background: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run `main` and the background coroutines until one ends, then cancel the others. Raises: its error."""
    await _run_until(asyncio.FIRST_COMPLETED, (main, *background))


@asynccontextmanager
async def during(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run `work` in the background until the block ends, then cancel it. If `work` fails, the block still runs to its
    end. Raises: the block's error, else that of `work`."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await cancel([task])
    if not task.cancelled():
        task.result()


async def _run_until(event: str, coroutines: Iterable[Coroutine[Any, Any, object]]) -> None:
    """`event`: as `return_when` of asyncio.wait."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=event)
        for task in done:
            task.result()
    finally:
        await cancel(tasks)


async def pause(seconds: float) -> None:
    """Sleep, in a loop that runs until it is cancelled.

    Raises: CancelledError also if the cancellation was lost before: Python 3.11's wait_for can lose one, and a
    TaskGroup sends no second one.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    await asyncio.sleep(seconds)


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks until they end, repeatedly: Python 3.11's wait_for can lose a cancellation. If this is cancelled
    meanwhile, it ends after the tasks all the same."""
    pending, own = set(tasks), False
    while pending:
        for task in pending:
            task.cancel()
        try:
            _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        except asyncio.CancelledError:
            pending, own = {task for task in pending if not task.done()}, True
    if own:
        raise asyncio.CancelledError
