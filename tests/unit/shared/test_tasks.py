"""Tasks that run until they are cancelled."""

import asyncio
import contextlib

from shared.tasks import pause


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
