"""Prints one line of JSON for each outcome on the bus. Runs in a container of the cell, so it imports only `shared`."""

import asyncio
import os

import msgspec
from nats.aio.msg import Msg

from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.messages.requests import Outcome


async def main() -> None:
    bus = await Bus.connect(os.environ["DILASERVE_NATS_URL"], os.environ["DILASERVE_CELL"], name="experiment")

    async def receive(msg: Msg) -> None:
        print(msgspec.json.encode(decode(msg.data, Outcome)).decode(), flush=True)

    await bus.nc.subscribe(bus.subjects.outcomes("*"), cb=receive)
    await asyncio.Event().wait()


asyncio.run(main())
