"""A gateway in this process on a free port, with the real bus and a small scheduler."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import pytest_asyncio

from services.gateway.__main__ import serve
from services.gateway.listeners import listen
from services.gateway.settings import GatewaySettings
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.messages.gateway import Claim
from shared.text import TextModel
from tests.support.nats import NatsServer, new_cell
from tests.support.scheduler import AnsweringScheduler, answering
from tests.support.waiting import eventually

MODEL = "tiny-llada"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "How many pears?"}]}
LIMIT_S = 10.0  # time limit of each wait
REPLY_S = 60.0  # of each reply: some forms compile in a process of their own
ONE_CELL = pytest.mark.asyncio(loop_scope="module")
"""As `pytestmark` of a module: its tests share a cell, so they start it once and may change only its scheduler."""
OWN_CELL = pytest.mark.asyncio(loop_scope="function")
"""Of a test in such a module that needs a cell of its own."""


@dataclass
class RunningGateway:
    """SIGTERM sets `stop`; `done` ends when the gateway has drained. That of the fixture `gateway` has a scheduler."""

    url: str
    http: httpx.AsyncClient
    stop: asyncio.Event
    done: asyncio.Task[int]
    scheduler: AnsweringScheduler = field(init=False)

    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0)

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream, which must end with [DONE]."""
        reply = await self.http.post(path, json=body | {"stream": True})
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].startswith("text/event-stream")
        *sent, done = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
        assert done == "[DONE]"
        return [json.loads(event) for event in sent]

    async def readiness(self) -> str:
        """ "ready", or the reason why it is not."""
        reply = await self.http.get("/ready")
        return "ready" if reply.status_code == 200 else str(reply.json()["error"]["message"])

    async def until(self, readiness: str) -> None:
        """Wait until `/ready` reports this. Raises: TimeoutError after LIMIT_S."""
        await eventually(self.readiness, lambda found: found == readiness, LIMIT_S)

    async def drain(self) -> None:
        """Stop it as SIGTERM does, and wait until it has drained."""
        await self.http.aclose()
        self.stop.set()
        async with asyncio.timeout(2 * LIMIT_S):
            await self.done

    async def value(self, metric: str) -> float:
        """That of a metric with labels, 0 before its first change."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == metric), 0.0)

    async def metric(self, line: str) -> None:
        """Wait until `/metrics` has the line. Raises: TimeoutError after LIMIT_S."""
        await eventually(lambda: self.http.get("/metrics"), lambda reply: line in reply.text.splitlines(), LIMIT_S)


@contextlib.asynccontextmanager
async def running(
    settings: GatewaySettings, *texts: TextModel, shared: socket.socket | None = None
) -> AsyncIterator[RunningGateway]:
    """`texts`: of the gateway's own cell, and of those in `more_models`. `shared`: a socket that other gateways serve
    too, that does not block; the URL is that of this gateway alone."""
    listener = listen("127.0.0.1", 0)
    sockets = [listener]
    if shared is not None:
        settings, sockets = msgspec.structs.replace(settings, listener_fd=shared.fileno()), [shared.dup(), listener]
    port, trusted = listener.getsockname()[1], settings.tls_certificate
    url = f"https://localhost:{port}" if trusted else f"http://127.0.0.1:{port}"
    stop = asyncio.Event()
    done = asyncio.create_task(serve(settings, texts, sockets, stop))
    verify = ssl.create_default_context(cafile=trusted) if trusted else True
    async with httpx.AsyncClient(base_url=url, timeout=REPLY_S, verify=verify) as http:
        yield RunningGateway(url, http, stop, done)
    stop.set()
    async with asyncio.timeout(LIMIT_S):
        await done


@contextlib.asynccontextmanager
async def ready(
    settings: GatewaySettings, *texts: TextModel, shared: socket.socket | None = None
) -> AsyncIterator[RunningGateway]:
    """As `running`, of a gateway that can serve."""
    async with running(settings, *texts, shared=shared) as gateway:
        await gateway.until("ready")
        yield gateway


def text_of(reply: httpx.Response, *, stream: bool) -> str:
    """The text of a chat completion's reply."""
    if not stream:
        return str(reply.json()["choices"][0]["message"]["content"])
    *sent, _ = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n")[:-2]]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in sent)


async def leave(gateway: RunningGateway, path: str, **request: Any) -> str:
    """Post a request, and disconnect once the scheduler has it. Returns: its id."""
    counted = 'dilaserve_gateway_requests_total{outcome="left"}'
    before = await gateway.value(counted)
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        sent = asyncio.create_task(client.post(path, **request))
        request_id = await gateway.scheduler.received()
        sent.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sent
    await gateway.metric(f"{counted} {before + 1}")
    return request_id


async def claim_of(bus: Bus, request_id: str) -> Claim:
    bucket = await bus.bucket(bus.subjects.claims_bucket)
    return decode((await bucket.get(request_id)).value or b"", Claim)


@pytest.fixture
def shared() -> Iterator[socket.socket]:
    """A socket for several gateways."""
    with listen("127.0.0.1", 0) as listener:
        listener.setblocking(False)  # `dup` would make that of all block again
        yield listener


def settings_of(bus: Bus, model: Path, **changes: Any) -> GatewaySettings:
    usual = GatewaySettings(
        nats_url=str(bus.nc.connected_url.geturl()) if bus.nc.connected_url else "",
        cell=bus.subjects.cell,
        model=str(model),
        drain_timeout_s=LIMIT_S,
    )
    return msgspec.structs.replace(usual, **changes)


@pytest.fixture(scope="module")
def changes() -> dict[str, Any]:
    """Other settings of the gateway; a module may have its own."""
    return {}


@pytest.fixture
def settings(bus: Bus, tiny_model_dir: Path, changes: dict[str, Any]) -> GatewaySettings:
    return settings_of(bus, tiny_model_dir, **changes)


@pytest.fixture
async def own_scheduler(bus: Bus, text: TextModel) -> AsyncIterator[AnsweringScheduler]:
    async with answering(AnsweringScheduler(bus, text)) as scheduler:
        yield scheduler


@contextlib.asynccontextmanager
async def lonely(settings: GatewaySettings, text: TextModel) -> AsyncIterator[RunningGateway]:
    async with running(settings, text) as gateway:
        await gateway.until("no scheduler leads; no instance is ready")
        yield gateway


@pytest.fixture
async def own_lonely_gateway(settings: GatewaySettings, text: TextModel) -> AsyncIterator[RunningGateway]:
    async with lonely(settings, text) as gateway:
        yield gateway


@pytest.fixture
async def own_gateway(
    settings: GatewaySettings, text: TextModel, own_scheduler: AnsweringScheduler
) -> AsyncIterator[RunningGateway]:
    async with ready(settings, text) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_lonely_gateway(
    nats_server: NatsServer, tiny_model_dir: Path, text: TextModel, changes: dict[str, Any]
) -> AsyncIterator[RunningGateway]:
    async with new_cell(nats_server) as bus, lonely(settings_of(bus, tiny_model_dir, **changes), text) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_cell(
    nats_server: NatsServer, tiny_model_dir: Path, text: TextModel, changes: dict[str, Any]
) -> AsyncIterator[tuple[AnsweringScheduler, RunningGateway]]:
    async with (
        new_cell(nats_server) as bus,
        answering(AnsweringScheduler(bus, text)) as scheduler,
        ready(settings_of(bus, tiny_model_dir, **changes), text) as gateway,
    ):
        yield scheduler, gateway


def shares(request: pytest.FixtureRequest) -> bool:
    """Whether the tests of this module share a cell: they run in one loop, by `pytestmark = ONE_CELL`."""
    marker = request.node.get_closest_marker("asyncio")
    return marker is not None and marker == ONE_CELL.mark


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> AnsweringScheduler:
    if not shares(request):
        own: AnsweringScheduler = request.getfixturevalue("own_scheduler")
        return own
    shared: AnsweringScheduler = request.getfixturevalue("shared_cell")[0]
    shared.reset()
    return shared


@pytest.fixture
def gateway(request: pytest.FixtureRequest, scheduler: AnsweringScheduler) -> RunningGateway:
    """A gateway that can serve."""
    found: RunningGateway = (
        request.getfixturevalue("shared_cell")[1] if shares(request) else request.getfixturevalue("own_gateway")
    )
    found.scheduler = scheduler
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    """For a module whose tests share a cell."""
    async with gateway.openai() as api:
        yield api


@pytest.fixture
def lonely_gateway(request: pytest.FixtureRequest) -> RunningGateway:
    """A gateway with a bus and no scheduler."""
    found: RunningGateway = request.getfixturevalue(f"{'shared' if shares(request) else 'own'}_lonely_gateway")
    return found
