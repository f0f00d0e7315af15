"""A pull consumer's messages, also across a restart of the server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from shared.bus import pull_consumer
from shared.bus.client import Bus
from shared.bus.subjects import request_consumer
from tests.support.nats import NatsServer
from tests.support.tcp_proxy import TcpProxy

LIMIT_S = 20.0


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def consuming(bus: Bus) -> AsyncIterator["asyncio.Queue[bytes]"]:
    """Acknowledged messages of a consumer of REQUESTS."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(msg: Msg) -> None:
        await msg.ack()
        arrived.put_nowait(msg.data)

    stream = bus.subjects.stream("REQUESTS")
    task = asyncio.ensure_future(bus.run_consumer(stream, request_consumer(1), handle))
    try:
        yield arrived
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_single_message_is_passed_on_without_waiting_for_more(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_consumer, "EXPIRES_S", 10 * LIMIT_S)  # a fetch that waits for its batch takes as long
    async with consuming(bus) as arrived:
        await bus.js.publish(bus.subjects.requests, b"warm")
        await asyncio.wait_for(arrived.get(), LIMIT_S)
        await bus.js.publish(bus.subjects.requests, b"one")
        assert await asyncio.wait_for(arrived.get(), LIMIT_S) == b"one"


async def test_more_messages_than_one_pull_request_arrive_in_order(bus: Bus) -> None:
    async with consuming(bus) as arrived:
        for i in range(1300):
            await bus.nc.publish(bus.subjects.requests, str(i).encode())
        got = [int(await asyncio.wait_for(arrived.get(), LIMIT_S)) for _ in range(1300)]
    assert got == list(range(1300))


async def test_consumption_continues_after_the_server_was_killed(own_server: NatsServer) -> None:
    async with connected(own_server, "test") as bus, consuming(bus) as arrived:
        await bus.js.publish(bus.subjects.requests, b"before")
        assert await asyncio.wait_for(arrived.get(), LIMIT_S) == b"before"
        own_server.stop(kill=True)
        own_server.start()
        async with connected(own_server, "other") as other:
            await other.js.publish(other.subjects.requests, b"after")
        async with asyncio.timeout(LIMIT_S):
            # An acknowledgement on its way when the server was killed is lost, and its message comes once more.
            again = [await arrived.get()]
            while again[-1] != b"after":
                again.append(await arrived.get())
    assert set(again[:-1]) <= {b"before"}


@asynccontextmanager
async def connected(server: NatsServer, name: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url, "kill", name=name)
    try:
        await bus.set_up()
        yield bus
    finally:
        await bus.close()


async def test_messages_that_a_broken_connection_lost_are_delivered_again(nats_server: NatsServer, bus: Bus) -> None:
    proxy = TcpProxy(nats_server.port)
    url = f"nats://127.0.0.1:{await proxy.start()}"
    behind_proxy = await Bus.connect(url, bus.subjects.cell, name="consumer")
    reconnected = asyncio.Event()
    behind_proxy.reconnects.subscribe(reconnected.set)
    stream = bus.subjects.stream("REQUESTS")
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(msg: Msg) -> None:
        arrived.put_nowait(msg.data)

    task = asyncio.ensure_future(behind_proxy.run_consumer(stream, request_consumer(1), handle, is_exclusive=True))
    try:
        await bus.js.publish(bus.subjects.requests, b"before")
        assert await asyncio.wait_for(arrived.get(), LIMIT_S) == b"before"
        proxy.silence()
        await bus.js.publish(bus.subjects.requests, b"lost")
        await asyncio.wait_for(proxy.has_dropped(b"lost"), LIMIT_S)
        proxy.reset()
        await asyncio.wait_for(reconnected.wait(), LIMIT_S)
        again = [await asyncio.wait_for(arrived.get(), LIMIT_S) for _ in range(2)]
        assert again == [b"before", b"lost"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await behind_proxy.close()
        await proxy.stop()


@pytest.mark.slow
async def test_a_silent_connection_is_replaced_within_seconds(nats_server: NatsServer, bus: Bus) -> None:
    """The server's bytes are lost without a reset."""
    proxy = TcpProxy(nats_server.port)
    url = f"nats://127.0.0.1:{await proxy.start()}"
    behind_proxy = await Bus.connect(url, bus.subjects.cell, name="silent")
    reconnected = asyncio.Event()
    behind_proxy.reconnects.subscribe(reconnected.set)
    try:
        proxy.silence()
        await asyncio.wait_for(reconnected.wait(), LIMIT_S)
    finally:
        await behind_proxy.close()
        await proxy.stop()
