"""The memory of a gateway under clients that make it hold bodies and files."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from dilaserve.stack.ports import free_ports
from experiments.faults import memory_attacks
from experiments.faults.memory_attacks import many_uploads, unfinished_bodies, unread_downloads
from services.gateway.api import request_body
from services.gateway.api.request_body import SMALL_BODY_BYTES, BodyBudget
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.tasks import cancel
from shared.text import TextModel
from tests.support.gateway import LIMIT_S, RunningGateway, ready
from tests.support.scheduler import AnsweringScheduler
from tests.support.services import service
from tests.support.waiting import eventually, reached, until

MIB = 1 << 20
BUDGET = 16 * MIB
START_S = 60.0  # limit of the start on a busy machine, and of the return of the memory
OTHERS = 48 * MIB  # of connections, copies and what the allocator keeps


@dataclass
class Target:
    """A gateway with a process of its own."""

    url: str
    process: psutil.Process

    @property
    def memory(self) -> int:
        return int(self.process.memory_info().rss)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=4 * LIMIT_S)


@asynccontextmanager
async def gateway_process(settings: GatewaySettings, log: Path) -> AsyncIterator[Target]:
    port = free_ports(1)[0]
    environ = {"nats_url": settings.nats_url, "cell": settings.cell, "model": settings.model, "port": port}
    with service("gateway", {**environ, "max_body_memory_bytes": BUDGET}, log) as process:
        target = Target(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
        async with target.client() as http:

            async def listens() -> bool:
                try:
                    return (await http.get("/health")).is_success
                except httpx.TransportError:
                    return False

            await until(listens, START_S)
        yield target


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("attack", [unfinished_bodies, many_uploads, unread_downloads])
async def test_the_memory_stays_within_its_limit_and_returns(
    settings: GatewaySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[..., Awaitable[None]]
) -> None:
    monkeypatch.setattr(memory_attacks, "HOLD_S", 1.0)
    monkeypatch.setattr(memory_attacks, "BODIES", 100)
    monkeypatch.setattr(memory_attacks, "UPLOADS", 6)
    async with gateway_process(settings, tmp_path / "gateway.log") as target:
        before, peak = target.memory, 0
        attacking = asyncio.ensure_future(attack(target))
        while not attacking.done():
            await asyncio.wait({attacking}, timeout=0.1)
            peak = max(peak, target.memory)
        await attacking
        assert peak < before + BUDGET + OTHERS
        await reached(lambda: target.memory < before + OTHERS / 2, START_S)


@pytest.fixture
async def small_gateway(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler
) -> AsyncIterator[RunningGateway]:
    """A gateway that holds two large bodies."""
    async with ready(msgspec.structs.replace(settings, max_body_memory_bytes=8 * MIB), text) as gateway:
        yield gateway


async def test_the_largest_unfinished_body_is_refused_and_small_ones_are_served(small_gateway: RunningGateway) -> None:
    url = httpx.URL(small_gateway.url)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n" % (4 * MIB)
    opened = [await asyncio.open_connection(url.host, url.port) for _ in range(3)]
    async with asyncio.timeout(LIMIT_S):
        for _, writer in opened:
            writer.write(head + b" " * (3 * MIB))
            await writer.drain()
        reply = await opened[0][0].readuntil(b"}}")
        assert reply.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 2\r\n" in reply.lower()
        small = {"model": "tiny-llada", "prompt": "hi"}
        assert (await small_gateway.http.post("/v1/completions", json=small)).status_code == 200
        opened[1][1].write(b" " * (MIB - 100) + json.dumps(small).encode().rjust(100))
        assert (await opened[1][0].readline()).startswith(b"HTTP/1.1 200 ")
    for _, writer in opened:
        writer.close()


async def test_small_bodies_are_read_while_large_ones_wait(
    small_gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "LARGE_BYTES_PER_S", 1.0)
    small = json.dumps({"model": "tiny-llada", "prompt": "hi"}).encode()
    send = partial(small_gateway.http.post, "/v1/completions", headers={"Content-Type": "application/json"})
    large = asyncio.ensure_future(send(content=small.rjust(3 * SMALL_BODY_BYTES)))
    for _ in range(3):
        assert (await send(content=small)).status_code == 200
    assert not large.done()
    await cancel([large])


async def test_an_unfinished_upload_is_stored_as_it_arrives_and_then_deleted(
    bus: Bus, small_gateway: RunningGateway
) -> None:
    stream = f"OBJ_{bus.subjects.files_store}"

    async def stored_bytes() -> int:
        return (await bus.js.stream_info(stream)).state.bytes

    url = httpx.URL(small_gateway.url)
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    writer.write(head + b"Content-Length: %d\r\n\r\n" % (60 * MIB) + memory_attacks.FORM + bytes(21 * MIB))
    await eventually(stored_bytes, lambda found: found > 20 * MIB)
    writer.close()
    await eventually(stored_bytes, lambda found: found == 0)


async def test_a_download_is_read_from_the_store_as_the_client_reads_it(
    bus: Bus, small_gateway: RunningGateway
) -> None:
    content = {"file": ("a.jsonl", bytes(48 * MIB))}
    uploaded = await small_gateway.http.post("/v1/files", files=content, data={"purpose": "batch"})
    async with small_gateway.http.stream("GET", f"/v1/files/{uploaded.json()['id']}/content") as reply:
        assert reply.headers["Content-Length"] == str(48 * MIB)
        await bus.js.purge_stream(f"OBJ_{bus.subjects.files_store}")
        with pytest.raises(httpx.RemoteProtocolError):
            await reply.aread()
        assert reply.num_bytes_downloaded < 24 * MIB


async def test_lines_of_batches_wait_for_room() -> None:
    budget = BodyBudget(10)
    with budget.body() as body:
        budget.hold(body, 6)
        async with budget.room(4):
            waiting = asyncio.ensure_future(holds_room(budget, 5))
            await asyncio.sleep(0)
            assert not waiting.done()
        await asyncio.sleep(0)
        assert not waiting.done()
        budget.hold(body, -1)
        await waiting


async def holds_room(budget: BodyBudget, size: int) -> None:
    async with budget.room(size):
        pass
