"""The shared bus against a real server."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvloop
from nats.js import JetStreamContext
from nats.js.api import ConsumerInfo, DeliverPolicy, KeyValueConfig
from nats.js.errors import NotFoundError
from structlog.testing import capture_logs

from services.scheduler.io import kept_streams
from services.scheduler.io.kept_streams import KeptStreams
from shared.bus import stream_reader
from shared.bus.client import Bus
from shared.bus.errors import BUS_ERRORS
from shared.bus.reconnects import UNANSWERED_S
from shared.bus.stream_reader import read_stream
from shared.bus.subjects import MAX_UNFINISHED_REQUESTS, stream_names
from shared.bus.watch import BusWatch, Look, StreamContent, StreamState
from shared.messages.requests import Cancel, Request
from shared.tasks import cancel, during
from tests.support.nats import NatsServer
from tests.support.waiting import LIMIT_S, eventually, reached, until


async def test_a_subject_without_a_valid_message_has_no_last_one(bus: Bus) -> None:
    assert await bus.outcome("r1") is None
    await bus.js.publish(bus.subjects.outcomes("r1"), b"{}")
    assert await bus.outcome("r1") is None


async def test_an_existing_stream_of_requests_gets_the_bound_and_keeps_its_messages(bus: Bus) -> None:
    stream = bus.subjects.stream("REQUESTS")
    bounded = (await bus.js.stream_info(stream)).config
    assert bounded.max_msgs == MAX_UNFINISHED_REQUESTS
    await bus.js.update_stream(bounded.evolve(max_msgs=-1))  # as an earlier version left it
    await bus.store(bus.subjects.requests, Request(request_id="r1", prompt="x"))
    await bus.set_up()
    info = await bus.js.stream_info(stream)
    assert (info.config.max_msgs, info.state.messages) == (MAX_UNFINISHED_REQUESTS, 1)


async def test_a_lost_and_a_restored_connection_are_each_logged_once(own_server: NatsServer) -> None:
    bus = await Bus.connect(own_server.url, "lost", name="test")
    with capture_logs() as logs:
        own_server.stop(kill=True)
        await reached(lambda: isinstance(bus.nc.last_error, ConnectionRefusedError))
        own_server.start()
        await reached(lambda: any(line["event"] == "bus available again" for line in logs))
    assert [line["event"] for line in logs] == ["bus unavailable", "bus available again"]
    await bus.close()


async def test_all_of_many_stored_messages_are_read(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "READ_TIMEOUT_S", 0.25)  # too short for all of them at once
    for _ in range(20_000):
        await bus.publish(bus.subjects.arrivals, Cancel())
    stream = bus.subjects.stream("ARRIVALS")
    await eventually(lambda: bus.js.stream_info(stream), lambda found: found.state.messages == 20_000)
    assert len(await read_stream(bus, stream, bus.subjects.arrivals, deliver_policy=DeliverPolicy.ALL)) == 20_000


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_kernel_ends_a_connection_without_acknowledgements(
    run: Callable[[Any], None], own_server: NatsServer
) -> None:

    def limit_s(bus: Bus) -> float:
        transport: Any = bus.nc._transport
        connection = transport._io_writer.get_extra_info("socket")
        return float(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)) / 1000

    async def connect_and_reconnect() -> None:
        bus, again = await Bus.connect(own_server.url, "limited", name="test"), asyncio.Event()
        try:
            assert limit_s(bus) == UNANSWERED_S
            bus.reconnects.subscribe(again.set)
            own_server.stop(kill=True)
            own_server.start()
            async with asyncio.timeout(LIMIT_S):
                await again.wait()
            assert limit_s(bus) == UNANSWERED_S
        finally:
            await bus.close()

    run(connect_and_reconnect())


async def test_a_read_whose_consumer_is_lost_raises_an_error_of_the_bus(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, find = bus.subjects.stream("ARRIVALS"), JetStreamContext.PullSubscription.consumer_info
    monkeypatch.setattr(stream_reader, "READ_TIMEOUT_S", 1.0)
    for _ in range(2):  # nats-py fetches a single message otherwise
        await bus.js.publish(bus.subjects.arrivals, b"x")

    async def find_and_lose(subscription: JetStreamContext.PullSubscription) -> ConsumerInfo:
        info = await find(subscription)
        await bus.js.purge_stream(stream)
        losing.append(asyncio.ensure_future(lose(info.name)))
        return info

    async def lose(consumer: str) -> None:
        await eventually(lambda: bus.js.consumer_info(stream, consumer), lambda found: found.num_waiting)
        await bus.js.delete_consumer(stream, consumer)

    losing: list[asyncio.Future[None]] = []
    monkeypatch.setattr(JetStreamContext.PullSubscription, "consumer_info", find_and_lose)
    with pytest.raises(BUS_ERRORS):
        await read_stream(bus, stream, bus.subjects.arrivals, deliver_policy=DeliverPolicy.ALL)
    await asyncio.gather(*losing)


async def test_lost_streams_are_set_up_again_completely(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = bus.subjects.instances_bucket
    create, tries = bus.js.create_key_value, iter([TimeoutError])

    async def time_out_once(bucket: KeyValueConfig) -> None:
        for error in tries:
            raise error
        await create(bucket)

    monkeypatch.setattr(bus.js, "create_key_value", time_out_once)
    await bus.js.delete_stream(bus.subjects.stream("STEPS"))
    await bus.js.delete_key_value(forgotten)
    again = asyncio.Event()
    async with during(keep_streams(bus, again.set)):
        async with asyncio.timeout(LIMIT_S):
            await again.wait()
        assert (await (await bus.js.key_value(forgotten)).status()).bucket == forgotten


async def test_streams_that_cannot_be_set_up_do_not_hold_up_the_looks(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_streams, "SET_UP_S", 0.01)
    lost = asyncio.Event()

    async def never() -> None:
        await asyncio.Event().wait()

    streams = KeptStreams(bus, never, lost.set)
    async with asyncio.timeout(LIMIT_S):
        await streams.keep(Look(missing=streams.step_streams))
    assert not lost.is_set()  # steps that are sent again would be lost, too


async def test_a_lost_stream_of_steps_is_reported_once(bus: Bus) -> None:
    reports = 0

    def report() -> None:
        nonlocal reports
        reports += 1

    streams = KeptStreams(bus, bus.set_up, report)
    name = streams.step_streams[0]
    for look in (
        Look({name: StreamState(state=StreamContent(last_seq=7))}),
        Look(missing=[name]),
        Look({name: StreamState(state=StreamContent(last_seq=0))}),
    ):
        await streams.keep(look)
    assert reports == 1


async def keep_streams(bus: Bus, on_steps_lost: Callable[[], None]) -> None:
    """Keep the streams of the cell as a scheduler does, until cancelled."""
    streams = KeptStreams(bus, bus.set_up, on_steps_lost)
    watch = BusWatch(bus, streams.step_streams, 0.05, expected=stream_names(bus.subjects))
    watch.follow(streams.keep)
    await watch.run()


@pytest.mark.slow
async def test_every_stream_and_bucket_is_created_again_after_its_deletion(bus: Bus) -> None:
    lost = asyncio.Event()
    names = stream_names(bus.subjects)

    async def exists(name: str) -> bool:
        try:
            await bus.js.stream_info(name)
        except NotFoundError:
            return False
        return True

    steps = {bus.subjects.stream("STEPS"), bus.subjects.stream("STEP_RESULTS")}
    async with during(keep_streams(bus, lost.set)):
        for name in sorted(names - steps):
            await bus.js.delete_stream(name)
            await until(partial(exists, name))
        assert not lost.is_set()  # no step was lost


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_bus_closes_while_the_server_is_unavailable(run: Callable[[Any], None], own_server: NatsServer) -> None:

    async def lose_and_close() -> None:
        bus = await Bus.connect(own_server.url, "away", name="test")
        own_server.stop(kill=True)
        await reached(lambda: not bus.nc.is_connected)
        await bus.publish(bus.subjects.cancel("r1"), Cancel())  # waits to be sent
        await bus.close()
        assert bus.nc.is_closed

    run(lose_and_close())


async def test_a_cancelled_attempt_to_connect_ends_its_connection() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began.set()
        await reader.read()
        writer.close()
        ended.set()

    async with asyncio.timeout(LIMIT_S), await asyncio.start_server(keep_silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connecting = asyncio.create_task(Bus.connect(f"nats://127.0.0.1:{port}", "silent", name="test"))
        await began.wait()
        await cancel([connecting])
        await ended.wait()
