"""Tasks that run until they are cancelled, and deferred actions."""

import asyncio
import contextlib

import nats.errors
import pytest

from shared.background import DeferredTasks
from shared.tasks import cancel, during, pause, run_together


async def test_a_loop_with_pauses_ends_although_its_cancellation_was_lost() -> None:
    started = asyncio.Event()

    async def loop() -> None:
        while True:
            started.set()
            with contextlib.suppress(asyncio.CancelledError):  # as wait_for loses it
                await asyncio.sleep(60)
            await pause(0)

    task = asyncio.create_task(loop())
    await started.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()


async def stubborn(started: asyncio.Event, losses: int) -> None:
    """Loses its first cancellations."""
    started.set()
    for _ in range(losses):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
    await asyncio.sleep(60)


async def test_tasks_that_lose_cancellations_end_with_the_one_that_runs_them() -> None:
    started = asyncio.Event()
    task = asyncio.create_task(run_together([stubborn(started, 3), asyncio.sleep(60)]))
    await started.wait()
    async with asyncio.timeout(5):
        await cancel([task])
    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_error_of_one_task_ends_the_others() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    started = asyncio.Event()
    with pytest.raises(ValueError, match="broken"):
        await run_together([stubborn(started, 1), fail()])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_during_a_block_ends_with_it() -> None:
    started = asyncio.Event()
    async with during(stubborn(started, 1)):
        await started.wait()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_error_of_work_during_a_block_is_raised_at_its_end() -> None:
    failed = asyncio.Event()

    async def fail() -> None:
        failed.set()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        async with during(fail()):
            await failed.wait()


async def test_deferred_actions_run_in_order_and_are_awaited() -> None:
    deferred, done = DeferredTasks(), list[str]()
    all_done = asyncio.Event()

    async def slow() -> None:
        await asyncio.sleep(0)
        done.append("awaited")

    running = asyncio.ensure_future(deferred.run())
    deferred.defer(slow)
    deferred.defer(lambda: done.append("called"))
    deferred.defer(all_done.set)
    await asyncio.sleep(0)
    assert done == []
    await asyncio.wait_for(all_done.wait(), 10)
    assert done == ["awaited", "called"]
    await cancel([running])


async def test_a_bus_error_is_logged_and_later_actions_still_run() -> None:
    deferred, done = DeferredTasks(), list[str]()

    async def refused() -> None:
        raise nats.errors.ConnectionClosedError

    deferred.defer(refused)
    deferred.defer(lambda: done.append("after it"))
    await deferred.run_now()
    assert done == ["after it"]
