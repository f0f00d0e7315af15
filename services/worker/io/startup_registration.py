"""Registers an instance as starting while its model is loaded and measured.

Loading and measuring block the main thread, so another thread renews the registration.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from services.worker.io.registration import Registration
from services.worker.settings import WorkerSettings
from shared.messages.instances import Instance, InstanceState
from shared.service import connect_to_bus

STOP_TIMEOUT_S = 5.0  # for the thread to end; the entry expires anyway


@contextmanager
def startup_registration(settings: WorkerSettings, instance: Instance) -> Iterator[None]:
    """Keep the instance registered as starting."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(_register(settings, replace(instance, state=InstanceState.STARTING)))
    thread = threading.Thread(target=_run, args=(loop, task), name="starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(task.cancel)
        thread.join(STOP_TIMEOUT_S)


def _run(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


async def _register(settings: WorkerSettings, instance: Instance) -> None:
    name = f"{instance.instance_id}-starting"
    bus = await connect_to_bus(name, settings)
    try:
        await Registration(bus, instance).run()
    finally:
        await bus.close()
