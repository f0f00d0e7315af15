"""Probes answer quickly, whether the server is available or not."""

import asyncio
import socket

from dilaserve.stack.ports import LOOPBACK
from dilaserve.stack.probes import nats_answers
from tests.support.nats import NatsServer
from tests.support.waiting import LIMIT_S


async def test_an_unavailable_bus_is_detected(nats_server: NatsServer) -> None:
    with socket.socket() as taken:  # so that no other server has the port
        taken.bind((LOOPBACK, 0))
        async with asyncio.timeout(LIMIT_S):
            assert not await nats_answers(f"nats://{LOOPBACK}:{taken.getsockname()[1]}")
    assert await nats_answers(nats_server.url)
