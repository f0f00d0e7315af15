"""Several gateways: behind one port, each with an address of its own, and with a common use of API keys."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from services.gateway import http_server
from services.gateway.__main__ import serve
from services.gateway.admission.admission import SILENCE_S, KeyUse
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.bus.clock import BusClock
from shared.messages.gateway import GatewayUse
from shared.tasks import during
from shared.text import TextModel
from tests.support.gateway import CHAT, LIMIT_S, ready, running
from tests.support.scheduler import AnsweringScheduler
from tests.support.waiting import reached, until

CLIENTS = 3  # that keep their connection, and as many that open one for each request


@pytest.fixture(autouse=True)
def short_last_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LAST_REQUEST_S", 1)


@contextlib.asynccontextmanager
async def load(shared: socket.socket) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Clients that send their next request when they have a reply; none may fail. Yields: a wait for more replies."""
    url, statuses, stopped = f"http://127.0.0.1:{shared.getsockname()[1]}", list[int](), asyncio.Event()

    async def one_client(headers: dict[str, str]) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S, headers=headers) as http:
            while not stopped.is_set():
                statuses.append((await http.post("/v1/chat/completions", json=CHAT)).status_code)

    async def further() -> None:
        wanted = len(statuses) + 4 * CLIENTS
        await reached(lambda: len(statuses) >= wanted)

    async with asyncio.TaskGroup() as clients:
        for headers in ({}, {"Connection": "close"}):
            for _ in range(CLIENTS):
                clients.create_task(one_client(headers))
        yield further
        stopped.set()
    assert set(statuses) == {200}


async def test_no_request_fails_while_a_gateway_is_drained_and_replaced(
    settings: GatewaySettings, text: TextModel, scheduler: AnsweringScheduler, shared: socket.socket
) -> None:
    async with contextlib.AsyncExitStack() as gateways:
        first, second = [await gateways.enter_async_context(running(settings, text, shared=shared)) for _ in range(2)]
        for gateway in (first, second):
            await gateway.until("ready")
        async with load(shared) as further:
            await further()
            await first.drain()
            await further()
            await gateways.enter_async_context(running(settings, text, shared=shared))
            await second.drain()
            await further()


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
        async with asyncio.timeout(LIMIT_S / 2):  # the half of its time
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
    async with running(settings, text, shared=shared), load(shared) as further:
        await further()
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


MINUTE_S = 60.0


@contextlib.asynccontextmanager
async def sharing(bus: Bus, in_flight: dict[str, int]) -> AsyncIterator[KeyUse]:
    """One gateway's part; `in_flight` may change."""
    use, clock = KeyUse(lambda: dict(in_flight)), BusClock()
    async with during(use.run(bus, clock)):
        yield use


async def until_counted(use: KeyUse, key_id: str) -> None:
    """Wait until this gateway counts a request at another one, at a limit of one per minute. It may allow one itself
    before it knows; then its own wait is one minute longer."""
    own = 0

    def is_counted() -> bool:
        nonlocal own
        wait_s = use.acquire(key_id, 1)
        own += not wait_s
        return wait_s > own * MINUTE_S

    await reached(is_counted)


async def test_gateways_count_the_requests_in_flight_at_the_others(bus: Bus) -> None:
    here, there = {"k": 2, "l": 1}, dict[str, int]()
    async with sharing(bus, here) as first, sharing(bus, there) as second:
        await reached(lambda: second.in_flight_elsewhere("k") == 2)
        assert second.in_flight_elsewhere("l") == 1
        assert first.in_flight_elsewhere("k") == 0
        del here["k"]
        await reached(lambda: second.in_flight_elsewhere("k") == 0)


async def test_gateways_count_the_requests_allowed_by_the_others(bus: Bus) -> None:
    async with sharing(bus, {}) as first, sharing(bus, {}) as second:
        assert first.acquire("k", 1) == 0.0
        await until_counted(second, "k")
        assert second.acquire("other", 1) == 0.0


async def test_requests_of_a_gateway_count_until_it_was_silent_for_three_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, use = 100.0, KeyUse(dict)
    monkeypatch.setattr("services.gateway.admission.admission._now_s", lambda: now_s)
    use.receive(GatewayUse(gateway="g1", rates=[], in_flight={"k": 2}), 0.0)
    assert use.in_flight_elsewhere("k") == 2
    now_s += SILENCE_S + 0.1
    assert use.in_flight_elsewhere("k") == 0
