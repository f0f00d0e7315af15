"""Says on the bus that an instance is starting, while its model is loaded and measured.

Both block, so that a thread of its own renews the entry.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from services.worker.io.registration import Registration
from services.worker.settings import WorkerSettings
from shared.bus.client import Bus
from shared.messages.instances import Instance, InstanceState

END_S = 5.0  # how long the thread may take to end; the entry expires anyway


@contextmanager
def startup_registration(settings: WorkerSettings, instance: Instance) -> Iterator[None]:
    """Keep the instance registered as starting."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(_keep(settings, replace(instance, state=InstanceState.STARTING)))
    thread = threading.Thread(target=_run, args=(loop, task), name="starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        thread.join(END_S)


def _run(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


async def _keep(settings: WorkerSettings, instance: Instance) -> None:
    name = f"{instance.instance_id}-starting"
    bus = await Bus.connect(settings.nats_url, settings.cell, name=name, alive_file=settings.alive_file)
    try:
        await Registration(bus, instance).keep()
    finally:
        await bus.close()
