"""Services of an earlier commit and of this commit serve a cell together, under load."""

import asyncio
import io
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from dilaserve.stack.ports import free_ports
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.accounts import is_duplicated, received_outcomes
from experiments.faults.load import Answer, NextGateway, closed_loop, send
from experiments.live_cluster import CELL, held_out_requests
from tests.support.nats import started_server
from tests.support.services import ROOT, service, stop
from tests.support.waiting import reached, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EARLIER = "738b2ee227e83f3ab59b7dfba454c6edca832921"  # before cells had a configuration, and requests pinned tokens
PROMPTS = [row.prompt for row in held_out_requests()[:10]]
CLIENTS = 4
SERVED = 20  # answers between two steps of an upgrade
WITHIN_S = 90.0


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the earlier commit. Its services run in this environment, whose packages are the same."""
    found = subprocess.run(["git", "archive", EARLIER], cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"the repository does not have the commit {EARLIER[:7]}: {found.stderr.decode().strip()}")
    root = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as tar:
        tar.extractall(root, filter="data")
    return root


class Cell:
    """A cell whose services are of either version."""

    def __init__(self, nats_url: str, directory: Path, processes: ExitStack) -> None:
        self.nats_url = nats_url
        self._directory = directory
        self._processes = processes

    async def start(self, name: str, root: Path, number: int = 1, **own: object) -> subprocess.Popen[bytes]:
        """Start a service of the version in `root`, and wait until it has connected."""
        alive = self._directory / f"{name}-{number}.alive"
        settings: dict[str, object] = {
            "nats_url": self.nats_url,
            "cell": CELL,
            "model": DEMO_MODEL,
            "alive_file": alive,
        }
        if name in {"scheduler", "worker"}:
            own["cache"] = "dual"
        if name == "scheduler":
            own |= {"policy": "dilaserve", "thresholds": "0.9"}
        if name == "worker":
            own |= {"instance": f"worker-{number}", "threads": 1, "dtype": "float32"}  # as the earlier one
        log = self._directory / f"{name}-{number}.log"
        process = self._processes.enter_context(service(name, settings | own, log, root=root))
        await reached(alive.exists, WITHIN_S)
        return process

    def log(self, name: str, number: int) -> str:
        return (self._directory / f"{name}-{number}.log").read_text()

    @asynccontextmanager
    async def load(self, ports: Sequence[int]) -> AsyncIterator[list[Answer]]:
        """Clients of the gateways on these ports send requests during the body, after each prompt alone. At the end
        every request has had one outcome, with the text of the prompt alone."""
        gateways = NextGateway([f"http://127.0.0.1:{port}" for port in ports])
        async with httpx.AsyncClient(base_url="http://gateway", transport=gateways, timeout=WITHIN_S) as http:
            alone = [await send(http, prompt) for prompt in PROMPTS]
            assert None not in {each.text for each in alone}
            async with received_outcomes(self.nats_url) as received, closed_loop(http, PROMPTS, CLIENTS) as answers:
                yield answers
        assert [answer.errors for answer in answers if answer.text is None] == []
        assert {(each.prompt, each.text) for each in answers} <= {(each.prompt, each.text) for each in alone}
        assert not any(map(is_duplicated, received.values()))


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    with started_server(tmp_path) as server, ExitStack() as processes:
        yield Cell(server.url, tmp_path, processes)


async def serves(port: int, instances: int) -> None:
    """Wait until the gateway is ready and has this number of ready instances."""

    async def is_ready() -> bool:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            try:
                view = (await http.get("/cluster")).raise_for_status().json()
            except httpx.HTTPError:
                return False
        states = [each["state"] for node in view["nodes"] for each in node["instances"]]
        return bool(view["ready"]) and states.count("ready") == instances

    await until(is_ready, WITHIN_S)


async def more(answers: list[Answer]) -> None:
    """Wait until further requests are answered."""
    count = len(answers) + SERVED
    await reached(lambda: len(answers) >= count, WITHIN_S)


@pytest.mark.parametrize("newer", ["scheduler", "workers"])
async def test_a_scheduler_serves_with_workers_of_another_version(cell: Cell, earlier: Path, newer: str) -> None:
    port = free_ports(1)[0]
    of_scheduler, of_workers = (ROOT, earlier) if newer == "scheduler" else (earlier, ROOT)
    await cell.start("scheduler", of_scheduler)
    for number in (1, 2):
        await cell.start("worker", of_workers, number)
    await cell.start("gateway", ROOT, port=port)
    await serves(port, instances=2)
    async with cell.load([port]) as answers:
        await more(answers)


async def test_a_cell_is_upgraded_service_by_service_under_load(cell: Cell, earlier: Path) -> None:
    """In the order of docs/operations.md."""
    ports = free_ports(2)
    old = {name: await cell.start(name, earlier) for name in ("scheduler", "predictor")}
    old_workers = [await cell.start("worker", earlier, number) for number in (1, 2)]
    old_gateway = await cell.start("gateway", earlier, port=ports[0])
    await serves(ports[0], instances=2)
    async with cell.load(ports) as answers:
        await more(answers)
        await cell.start("scheduler", ROOT, 2)
        await reached(lambda: "standing by" in cell.log("scheduler", 2), WITHIN_S)
        assert await asyncio.to_thread(stop, old["scheduler"]) == 0
        await more(answers)
        await cell.start("predictor", ROOT, 2)
        assert await asyncio.to_thread(stop, old["predictor"]) == 0
        await more(answers)
        for number, worker in enumerate(old_workers, 3):
            await cell.start("worker", ROOT, number)
            await serves(ports[0], instances=3)
            assert await asyncio.to_thread(stop, worker) == 0
            await serves(ports[0], instances=2)
            await more(answers)
        await cell.start("gateway", ROOT, 2, port=ports[1])
        await serves(ports[1], instances=2)
        assert await asyncio.to_thread(stop, old_gateway) == 0
        await more(answers)
