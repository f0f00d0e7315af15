"""The bus on a cluster of three servers: what it stores and serves when one of them fails."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dilaserve.stack.nats import cluster_sections
from dilaserve.stack.ports import free_ports
from experiments.faults.bus_servers import BusServers, bus_servers, leaders
from experiments.live_cluster import CELL
from services.scheduler.io import delivery_watch
from services.scheduler.io.delivery_watch import DeliveryWatch
from services.scheduler.io.kept_streams import KeptStreams
from shared.bus.client import Bus, until_answered
from shared.bus.errors import BUS_ERRORS
from shared.bus.subjects import request_consumer, stream_names
from shared.bus.watch import BusWatch, Look
from shared.errors import BadInput
from shared.messages.requests import Request
from shared.retry import retry
from shared.text import TextModel
from tests.support.intake import receiving
from tests.support.nats import started_server
from tests.support.waiting import LIMIT_S, until

ELECTION_S = 60.0  # limit of what waits for a cluster to choose leaders


@pytest.fixture
async def cluster() -> AsyncIterator[tuple[BusServers, str, Bus]]:
    """The servers, their URLs, and a connection to one of them."""
    with bus_servers(3) as (servers, url):
        bus = await Bus.connect(url, CELL, name="test")
        yield servers, url, bus
        await bus.close()


@pytest.mark.slow
async def test_an_existing_cell_gets_the_number_of_replicas_and_keeps_its_messages(
    cluster: tuple[BusServers, str, Bus],
) -> None:
    _, url, bus = cluster
    await bus.set_up(replicas=1)
    await stored(bus, "r1")
    await bus.set_up(replicas=3)
    await leaders(url)  # every server has every stream
    infos = [await bus.wait_for_stream(name) for name in stream_names(bus.subjects)]
    assert {info.config.num_replicas for info in infos} == {3}
    assert (await bus.wait_for_stream(bus.subjects.stream("REQUESTS"))).state.messages == 1


@pytest.mark.slow
async def test_an_acknowledgement_that_a_failing_server_lost_is_sent_again(
    cluster: tuple[BusServers, str, Bus], tiny_model_dir: Path
) -> None:
    servers, url, bus = cluster
    await bus.set_up(replicas=3)
    stream = bus.subjects.stream("REQUESTS")
    async with receiving(bus, TextModel(tiny_model_dir, "tiny")) as intake:
        await stored(bus, "r")
        arrived = await intake.arrived()
        others = {str(bus.nc._server_info["server_name"]), (await leaders(url))[bus.subjects.stream("OUTCOMES")]}
        leader = await leader_beside(others, bus, stream)
        servers.processes[leader].send_signal(signal.SIGSTOP)
        intake.finish(arrived)
        await intake.outcomes.drain()
        await leader_beside({leader}, bus, stream)
        servers.kill(leader)

        async def is_acknowledged() -> bool:
            with suppress(*BUS_ERRORS):
                return (await bus.js.stream_info(stream)).state.messages == 0
            return False

        await until(is_acknowledged, ELECTION_S)


@pytest.mark.slow
async def test_a_slow_request_is_no_loss_after_a_change_of_leader(
    cluster: tuple[BusServers, str, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server counts acknowledgements from 0, whatever the stream's first message is."""
    monkeypatch.setattr(delivery_watch, "CHECK_S", 0.0)
    _, _, bus = cluster
    await bus.set_up(replicas=3)
    stream, config = bus.subjects.stream("REQUESTS"), request_consumer(1)
    await stored(bus, "before")
    await until_answered("empty the stream", partial(bus.js.purge_stream, stream))
    await stored(bus, "long")
    watch = DeliveryWatch(bus, stream, str(config.durable_name), lambda sequence: sequence == 2)
    info = await until_answered("create the consumer", partial(bus.js.add_consumer, stream, config))
    watch.start(info)
    pulling = await bus.js.pull_subscribe_bind(str(config.durable_name), stream)
    [msg] = await until_answered("fetch a request", partial(pulling.fetch, 1))
    watch.note(msg)
    await leader_beside({str(info.cluster and info.cluster.leader)}, bus, stream)
    for _ in range(2):
        await watch.check(Look())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.wait_for_loss(), 0.01)


async def stored(bus: Bus, request_id: str) -> None:
    """Store a request, as soon as the cluster has chosen who leads its stream."""
    await retry(partial(bus.store, bus.subjects.requests, Request(request_id=request_id, prompt="x")))


async def leader_beside(others: set[str], bus: Bus, stream: str) -> str:
    """Ask the scheduler's consumer to change its leader until this is none of `others`. Returns: the leader's name."""
    consumer, found = request_consumer(1).durable_name, list[str]()

    async def is_found() -> bool:
        with suppress(*BUS_ERRORS):
            cluster = (await bus.js.consumer_info(stream, str(consumer))).cluster
            if cluster is not None and cluster.leader and cluster.leader not in others:
                found.append(cluster.leader)
                return True
            await bus.nc.request(f"$JS.API.CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}")
        return False

    await until(is_found, ELECTION_S)
    return found[0]


@pytest.mark.slow
async def test_step_messages_count_as_lost_when_another_server_leads_their_stream(
    cluster: tuple[BusServers, str, Bus],
) -> None:
    servers, url, bus = cluster
    await bus.set_up(replicas=3)
    stream, lost = bus.subjects.stream("STEPS"), asyncio.Event()
    led, watch = await leaders(url), watch_steps(bus, lost)
    await watch.look()
    assert not lost.is_set()
    servers.kill(led[stream])
    await until(partial(loses, watch, lost), ELECTION_S)


@pytest.mark.slow
async def test_an_emptied_stream_of_steps_is_noticed(cluster: tuple[BusServers, str, Bus]) -> None:
    servers, url, bus = cluster
    await bus.set_up(replicas=1)
    lost = asyncio.Event()
    watch = watch_steps(bus, lost)
    await until_answered("publish a step", partial(bus.js.publish, bus.subjects.steps("i1"), b"x"))
    leader = (await leaders(url))[bus.subjects.stream("STEPS")]
    await watch.look()
    assert not lost.is_set()
    servers.kill(leader)
    servers.start(leader)
    await until(partial(loses, watch, lost), ELECTION_S)


def watch_steps(bus: Bus, lost: asyncio.Event) -> BusWatch:
    streams = KeptStreams(bus, bus.set_up, lost.set)
    watch = BusWatch(bus, streams.step_streams, ELECTION_S)
    watch.follow(streams.keep)
    return watch


async def loses(watch: BusWatch, lost: asyncio.Event) -> bool:
    await watch.look()
    return lost.is_set()


async def test_several_replicas_without_a_cluster_are_refused_with_the_setting(bus: Bus) -> None:
    with pytest.raises(BadInput, match="DILASERVE_STREAM_REPLICAS=3: the NATS server is in no cluster"):
        await bus.set_up(replicas=3)


async def test_a_server_without_the_password_of_the_routes_is_refused(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    [section] = cluster_sections(["nats-1"], [port])
    with started_server(tmp_path, more=section):
        replies = await asyncio.to_thread(join_cluster, port)
    assert "-ERR 'Authorization Violation'" in replies


def join_cluster(port: int) -> str:
    """Everything that the server at this port of the routes sends to another server without a password."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as route:
        route.sendall(b'CONNECT {"verbose":false,"pedantic":false,"name":"other","cluster":"dilaserve"}\r\nPING\r\n')
        return b"".join(iter(lambda: route.recv(4096), b"")).decode()
