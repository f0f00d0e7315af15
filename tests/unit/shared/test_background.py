"""Deferred actions."""

import asyncio

import nats.errors

from shared.background import DeferredTasks
from shared.tasks import cancel


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
