"""Two cells of one model on one bus, behind two gateways: one of the cells is drained under load and stopped."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from nats.aio.msg import Msg

from dilaserve.stack.ports import free_ports
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.load import THRESHOLD, closed_loop
from experiments.live_cluster import held_out_requests
from shared.bus.client import Bus
from shared.bus.codec import decode
from shared.bus.subjects import Subjects
from shared.messages.requests import Outcome
from tests.support.nats import NatsServer
from tests.support.services import service
from tests.support.stack import dilaserve
from tests.support.waiting import reached, until

FIRST, SECOND = "two-a", "two-b"
CLIENTS = 4  # of each gateway
PROMPTS = [row.prompt for row in held_out_requests()[:10]]
LIMIT_S = 120.0
# With one threshold and no cache, a request's text is independent of time, instance and cell.
SCHEDULER = {"policy": "fixed", "threshold": THRESHOLD}
WORKER = {"device": "cpu", "threads": 1}


@contextmanager
def cell(name: str, nats_url: str, logs: Path) -> Iterator[None]:
    """A scheduler and a worker of the demo model."""
    common = {"nats_url": nats_url, "cell": name, "model": DEMO_MODEL, "model_name": "demo"}
    with (
        service("scheduler", common | SCHEDULER, logs / f"scheduler-{name}.log"),
        service("worker", common | WORKER, logs / f"worker-{name}.log"),
    ):
        yield


@contextmanager
def gateway(nats_url: str, logs: Path) -> Iterator[str]:
    """A gateway that serves both cells. Returns: its URL."""
    port = free_ports(1)[0]
    settings = {"nats_url": nats_url, "cell": FIRST, "model": DEMO_MODEL, "model_name": "demo", "port": port}
    with service("gateway", settings | {"more_models": f"demo={DEMO_MODEL}@{SECOND}"}, logs / f"gateway-{port}.log"):
        yield f"http://127.0.0.1:{port}"


async def is_ready(http: httpx.AsyncClient, name: str) -> bool:
    try:
        return bool((await http.get("/cluster", params={"cell": name})).json()["ready"])
    except httpx.TransportError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_cell_drained_under_load_fails_no_request(nats_server: NatsServer, tmp_path: Path) -> None:
    outcomes, url = {FIRST: Counter[str](), SECOND: Counter[str]()}, nats_server.url

    async def receive(msg: Msg) -> None:
        outcomes[msg.subject.split(".")[1]][decode(msg.data, Outcome).request_id] += 1

    def served(name: str) -> int:
        return outcomes[name].total()

    bus = await Bus.connect(url, FIRST, name="test")
    for name in (FIRST, SECOND):
        await bus.nc.subscribe(Subjects(name).outcomes("*"), cb=receive)
    with (
        ExitStack() as second,
        cell(FIRST, url, tmp_path),
        gateway(url, tmp_path) as own,
        gateway(url, tmp_path) as other,
    ):
        second.enter_context(cell(SECOND, url, tmp_path))
        async with (
            httpx.AsyncClient(base_url=own, timeout=LIMIT_S, trust_env=False) as http,
            httpx.AsyncClient(base_url=other, timeout=LIMIT_S, trust_env=False) as further,
        ):
            for client, name in itertools.product((http, further), (FIRST, SECOND)):
                await until(lambda client=client, name=name: is_ready(client, name), LIMIT_S)  # type: ignore[misc]
            async with closed_loop(http, PROMPTS, CLIENTS) as answers, closed_loop(further, PROMPTS, CLIENTS) as more:
                await reached(lambda: min(served(FIRST), served(SECOND)) >= 4 * CLIENTS, LIMIT_S)
                drained = await asyncio.to_thread(dilaserve, "drain", "--cell", SECOND, "--nats-url", url)
                assert drained.stdout.endswith(f"{SECOND} is drained\n"), drained.stderr
                await asyncio.to_thread(second.close)
                before = served(FIRST), served(SECOND)
                await reached(lambda: served(FIRST) >= before[0] + 4 * CLIENTS, LIMIT_S)
            every = answers + more
            assert [answer.errors for answer in every if answer.errors or answer.text is None] == []
            assert served(SECOND) == before[1]
            assert outcomes[FIRST] + outcomes[SECOND] == Counter(answer.request_id for answer in every)
            assert len({(answer.prompt, answer.text) for answer in every}) == len(PROMPTS)
            of_second = next(iter(outcomes[SECOND]))
            assert (await http.get(f"/v1/requests/{of_second}")).json()["status"] == "completed"
    await bus.close()
