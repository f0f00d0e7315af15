"""A pull consumer's messages, also across a restart of the server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.msg import Msg
from nats.js.api import ConsumerInfo

from shared.bus import pull_consumer
from shared.bus.client import Bus
from shared.bus.kept_consumer import KeptConsumer
from shared.bus.subjects import request_consumer
from shared.tasks import during
from tests.support.nats import NatsServer, new_cell
from tests.support.tcp_proxy import TcpProxy

LIMIT_S = 20.0


@asynccontextmanager
async def consuming(bus: Bus) -> AsyncIterator["asyncio.Queue[bytes]"]:
    """Acknowledged messages of a consumer of REQUESTS."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(msg: Msg) -> None:
        await msg.ack()
        arrived.put_nowait(msg.data)

    stream = bus.subjects.stream("REQUESTS")
    async with during(bus.run_consumer(stream, request_consumer(1), handle)):
        yield arrived


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


@pytest.mark.parametrize("status", ["100", "404", "409", "503"])
async def test_a_message_that_looks_like_a_status_of_the_server_is_passed_on(bus: Bus, status: str) -> None:
    headers = {"Status": status, "Description": "Consumer Deleted"}
    async with consuming(bus) as arrived:
        await bus.js.publish(bus.subjects.requests, b"", headers=headers)
        assert await asyncio.wait_for(arrived.get(), LIMIT_S) == b""


async def test_consumption_continues_after_the_server_was_killed(own_server: NatsServer) -> None:
    async with new_cell(own_server, "kill") as bus, consuming(bus) as arrived:
        await bus.js.publish(bus.subjects.requests, b"before")
        assert await asyncio.wait_for(arrived.get(), LIMIT_S) == b"before"
        own_server.stop(kill=True)
        own_server.start()
        async with new_cell(own_server, "kill") as other:
            await other.js.publish(other.subjects.requests, b"after")
        async with asyncio.timeout(LIMIT_S):
            # An acknowledgement on its way when the server was killed is lost, and its message comes once more.
            again = [await arrived.get()]
            while again[-1] != b"after":
                again.append(await arrived.get())
    assert set(again[:-1]) <= {b"before"}


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


@pytest.fixture
def short_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_consumer, "EXPIRES_S", 0.05)
    monkeypatch.setattr(pull_consumer, "SILENT_PULLS", 1)


@pytest.mark.parametrize("is_exclusive", [True, False])
async def test_a_consumer_whose_server_answers_no_pull_request_counts_as_lost(
    bus: Bus, short_pulls: None, is_exclusive: bool
) -> None:
    config, taken = request_consumer(1), asyncio.Event()

    async def take(_: Msg) -> None:
        taken.set()

    async def handle(_: Msg) -> None:
        raise AssertionError

    await bus.nc.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.silent.{config.durable_name}", cb=take)
    consumer = KeptConsumer(bus.nc, bus.js, "silent", config, handle, _is_exclusive=is_exclusive)
    await asyncio.wait_for(consumer.consume_while_it_exists(), LIMIT_S)
    assert taken.is_set()


async def test_a_consumer_is_kept_while_its_handler_takes_long(bus: Bus, short_pulls: None) -> None:
    stream, created = bus.subjects.stream("REQUESTS"), list[ConsumerInfo]()
    handled: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(msg: Msg) -> None:
        await asyncio.sleep(4 * pull_consumer.EXPIRES_S + 1.0)  # longer than a pull request waits for its answer
        await msg.ack()
        handled.put_nowait(msg.data)

    consuming = bus.run_consumer(stream, request_consumer(1), handle, on_create=created.append)
    async with during(consuming):
        for data in (b"one", b"two"):
            await bus.js.publish(bus.subjects.requests, data)
        assert [await asyncio.wait_for(handled.get(), LIMIT_S) for _ in range(2)] == [b"one", b"two"]
        assert len(created) == 1
