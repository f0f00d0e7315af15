"""Two cells of one model on one bus, behind two gateways: one of the cells is drained under load and stopped."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from nats.aio.msg import Msg

from dilaserve.stack.ports import free_port
from dilaserve.stack.up_options import DEMO_MODEL
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.subjects import Subjects
from shared.messages.requests import Outcome
from tests.support.demo_questions import MODEL, chat_request
from tests.support.nats import NatsServer
from tests.support.services import service
from tests.support.stack import dilaserve
from tests.support.waiting import reached, until

FIRST, SECOND = "two-a", "two-b"
CLIENTS = 8
QUESTIONS = 10
LIMIT_S = 120.0
# With one threshold and no cache, a request's text is independent of time, instance and cell.
SCHEDULER = {"policy": "fixed", "threshold": 0.9, "default_slo_s": 60}
WORKER = {"device": "cpu", "threads": 1}


@dataclass
class Load:
    """The replies to the clients, and the outcomes on the bus."""

    replies: list[httpx.Response] = field(default_factory=list)
    texts: dict[int, set[str]] = field(default_factory=dict)  # by question
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: {FIRST: Counter(), SECOND: Counter()})

    async def receive(self, msg: Msg) -> None:
        self.outcomes[msg.subject.split(".")[1]][decode(msg.data, Outcome).request_id] += 1

    def served(self, cell: str) -> int:
        return self.outcomes[cell].total()


@contextmanager
def cell(name: str, nats_url: str, logs: Path) -> Iterator[None]:
    """A scheduler and a worker of the demo model."""
    common = {"nats_url": nats_url, "cell": name, "model": DEMO_MODEL, "model_name": MODEL}
    with (
        service("scheduler", common | SCHEDULER, logs / f"scheduler-{name}.log"),
        service("worker", common | WORKER, logs / f"worker-{name}.log"),
    ):
        yield


@contextmanager
def gateways(nats_url: str, logs: Path, number: int) -> Iterator[list[str]]:
    """Gateways that serve both cells. Returns: their URLs."""
    settings = {"nats_url": nats_url, "cell": FIRST, "model": DEMO_MODEL, "model_name": MODEL}
    settings["more_models"] = f"{MODEL}={DEMO_MODEL}@{SECOND}"
    with ExitStack() as running:
        ports = [free_port() for _ in range(number)]
        for port in ports:
            running.enter_context(service("gateway", settings | {"port": port}, logs / f"gateway-{port}.log"))
        yield [f"http://127.0.0.1:{port}" for port in ports]


async def is_ready(http: httpx.AsyncClient, url: str, name: str) -> bool:
    try:
        return bool((await http.get(f"{url}/cluster", params={"cell": name})).json()["ready"])
    except httpx.TransportError:
        return False


@asynccontextmanager
async def closed_loop(http: httpx.AsyncClient, urls: list[str], load: Load) -> AsyncIterator[None]:
    """During the body each client sends its next request when it has a reply; every second one has a key."""
    numbers, stopped = itertools.count(), asyncio.Event()

    async def one_client(url: str) -> None:
        while not stopped.is_set():
            number = next(numbers)
            headers = {"Idempotency-Key": str(number)} if number % 2 else {}
            body = chat_request(number % QUESTIONS)
            reply = await http.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            load.replies.append(reply)
            if reply.status_code == 200:
                content = reply.json()["choices"][0]["message"]["content"]
                load.texts.setdefault(number % QUESTIONS, set()).add(content)

    clients = [asyncio.ensure_future(one_client(url)) for _, url in zip(range(CLIENTS), itertools.cycle(urls))]
    try:
        yield
    finally:
        stopped.set()
        await asyncio.gather(*clients)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_cell_drained_under_load_fails_no_request(nats_server: NatsServer, tmp_path: Path) -> None:
    load, stopping = Load(), ExitStack()
    bus = await Bus.connect(nats_server.url, FIRST, name="test")
    for name in (FIRST, SECOND):
        await bus.nc.subscribe(Subjects(name).outcomes("*"), cb=load.receive)
    with stopping, cell(FIRST, nats_server.url, tmp_path), gateways(nats_server.url, tmp_path, 2) as urls:
        second = stopping.enter_context(ExitStack())
        second.enter_context(cell(SECOND, nats_server.url, tmp_path))
        async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as http:
            for url, name in itertools.product(urls, (FIRST, SECOND)):
                await until(lambda url=url, name=name: is_ready(http, url, name), LIMIT_S)  # type: ignore[misc]
            async with closed_loop(http, urls, load):
                await reached(lambda: min(load.served(FIRST), load.served(SECOND)) >= 2 * CLIENTS, LIMIT_S)
                options = ("--cell", SECOND, "--nats-url", nats_server.url)
                drained = await asyncio.to_thread(dilaserve, "drain", *options)
                assert drained.stdout.endswith(f"{SECOND} is drained\n"), drained.stderr
                await asyncio.to_thread(second.close)
                served = load.served(FIRST), load.served(SECOND)
                await reached(lambda: load.served(FIRST) >= served[0] + 2 * CLIENTS, LIMIT_S)
            assert [reply.text for reply in load.replies if reply.status_code != 200] == []
            assert load.served(SECOND) == served[1]
            names = [reply.json()["dilaserve"]["request_id"] for reply in load.replies]
            assert load.outcomes[FIRST] + load.outcomes[SECOND] == Counter(names)  # each has one outcome, in one cell
            assert [texts for texts in load.texts.values() if len(texts) > 1] == []
            of_second = next(iter(load.outcomes[SECOND]))
            assert (await http.get(f"{urls[0]}/v1/requests/{of_second}")).json()["status"] == "completed"
    await bus.close()
