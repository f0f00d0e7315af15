"""Several gateways behind one port, each with an address of its own."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import msgspec
from structlog.testing import capture_logs

from services.gateway.__main__ import serve
from services.gateway.http_server import LAST_REQUEST_S
from services.gateway.settings import GatewaySettings
from shared.text import TextModel
from tests.support.gateway import CHAT, LIMIT_S, ready, running
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import reached, until

CLIENTS = 3  # that keep their connection, and as many that open one for each request


@dataclass
class Load:
    """Clients that send their next request when they have a reply."""

    url: str
    statuses: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def one_client(self, stopped: asyncio.Event, *, keeps_connection: bool) -> None:
        headers = {} if keeps_connection else {"Connection": "close"}
        async with httpx.AsyncClient(timeout=LIMIT_S, headers=headers) as http:
            while not stopped.is_set():
                try:
                    self.statuses.append((await http.post(f"{self.url}/v1/chat/completions", json=CHAT)).status_code)
                except httpx.TransportError as error:
                    self.errors.append(repr(error))

    async def further(self, replies: int) -> None:
        """Wait for this number of replies more."""
        wanted = len(self.statuses) + replies
        await reached(lambda: len(self.statuses) >= wanted)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stopped = asyncio.Event()
        clients = [
            asyncio.create_task(self.one_client(stopped, keeps_connection=keeps))
            for keeps in (True, False)
            for _ in range(CLIENTS)
        ]
        try:
            yield
        finally:
            stopped.set()
            await asyncio.gather(*clients)


async def test_no_request_fails_while_a_gateway_is_drained_and_replaced(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, shared: socket.socket
) -> None:
    load = Load(f"http://127.0.0.1:{shared.getsockname()[1]}")
    async with contextlib.AsyncExitStack() as gateways:
        first, second = [await gateways.enter_async_context(running(settings, text, shared=shared)) for _ in range(2)]
        for gateway in (first, second):
            await gateway.until("ready")
        async with load.running():
            await load.further(4 * CLIENTS)
            await first.drain()
            await load.further(4 * CLIENTS)
            await gateways.enter_async_context(running(settings, text, shared=shared))
            await second.drain()
            await load.further(4 * CLIENTS)
    assert set(load.statuses) == {200}
    assert load.errors == []


async def test_a_draining_gateway_finishes_its_requests_and_closes_their_connections(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, shared: socket.socket
) -> None:
    scheduler.hold = asyncio.Event()
    url = f"http://127.0.0.1:{shared.getsockname()[1]}/v1/chat/completions"
    async with ready(settings, text, shared=shared) as gateway:
        async with httpx.AsyncClient(timeout=LIMIT_S) as http:
            open_request = asyncio.create_task(http.post(url, json=CHAT))
            await scheduler.received()
            draining = asyncio.create_task(gateway.drain())
            await until(lambda: _is_refused(gateway.url))
            queued = asyncio.create_task(http.post(url, json=CHAT))  # a new connection: it waits for another gateway
            scheduler.hold.set()
            assert (await open_request).status_code == 200
            async with running(settings, text, shared=shared):
                assert (await queued).status_code == 200
        await draining


async def test_a_draining_gateway_closes_idle_connections_before_its_time_is_over(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, shared: socket.socket
) -> None:
    async with ready(settings, text, shared=shared) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        assert (await http.get("/health")).status_code == 200
        async with asyncio.timeout(2 * LAST_REQUEST_S):
            await gateway.drain()


async def _is_refused(url: str) -> bool:
    """Whether a connection to the gateway's own port is refused, or reset as it had not been accepted."""
    try:
        async with httpx.AsyncClient(timeout=LIMIT_S) as http:
            await http.get(url)
    except (httpx.ConnectError, httpx.ReadError):
        return True
    return False


async def test_a_gateway_that_is_not_ready_leaves_connections_to_the_others(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, shared: socket.socket
) -> None:
    absent, stop = msgspec.structs.replace(settings, cell="absent", listener_fd=shared.fileno()), asyncio.Event()
    starting = asyncio.create_task(serve(absent, [text], [shared.dup()], stop))
    load = Load(f"http://127.0.0.1:{shared.getsockname()[1]}")
    async with running(settings, text, shared=shared), load.running():
        await load.further(4 * CLIENTS)
    assert set(load.statuses) == {200}
    assert not starting.done()
    stop.set()
    async with asyncio.timeout(LIMIT_S):
        await starting


async def test_a_gateway_stopped_before_it_is_ready_does_not_report_that_it_listens(
    settings: GatewaySettings, text: TextModel, shared: socket.socket
) -> None:
    absent, stop = msgspec.structs.replace(settings, cell="absent", listener_fd=shared.fileno()), asyncio.Event()
    stop.set()
    with capture_logs() as logs:
        async with asyncio.timeout(LIMIT_S):
            await serve(absent, [text], [shared.dup()], stop)
    events = [each["event"] for each in logs]
    assert "draining" in events
    assert "listening" not in events
