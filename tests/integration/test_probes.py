"""Probes answer quickly, whether the server is available or not."""

import asyncio

from dilaserve.stack.ports import LOOPBACK, free_port
from dilaserve.stack.probes import POLL_INTERVAL_S, nats_answers
from tests.support.nats import NatsServer


async def test_an_unavailable_bus_is_detected_within_a_few_polls(nats_server: NatsServer) -> None:
    async with asyncio.timeout(10 * POLL_INTERVAL_S):
        assert not await nats_answers(f"nats://{LOOPBACK}:{free_port()}")
    assert await nats_answers(nats_server.url)
