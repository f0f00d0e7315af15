"""The embedded cluster for an experiment: `dilaserve up`, its chat endpoint and the messages on its bus."""

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import msgspec
from nats.aio.msg import Msg

from dilaserve.load.workload import LoadRequest
from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.ports import free_ports
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.background import background_program
from experiments.held_out import held_out
from shared.bus.client import Bus
from shared.bus.subjects import Subjects
from shared.bus.users import BusUser

CELL = "cell0"
SUBJECTS = Subjects(CELL)
READY_S = 180.0
PREDICTOR_ROWS = 100  # first rows of the held-out problems, from which the step predictor learnt


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """A cluster that is ready."""

    url: str
    nats_url: str
    command: Sequence[object]  # that started it


@contextmanager
def live_cluster(*options: object, within: Path | None = None) -> Iterator[LiveCluster]:
    """Run `dilaserve up` with these options, its data in a directory `within` another one. Raises: RuntimeError with
    its log if it does not start."""
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="dilaserve-", dir=within) as directory:
        data_dir = Path(directory) / "data"
        command = [sys.executable, "-m", "dilaserve", "up", "--port", port, "--data-dir", data_dir, *options]
        with background_program(command, lambda: is_ready(url), READY_S):
            yield LiveCluster(url, read_addresses(data_dir).nats_urls[BusUser.OPERATOR], command)


def one_instance(*options: object) -> AbstractContextManager[LiveCluster]:
    """A cluster of one instance with one thread on any machine; sets DILASERVE_THREADS for all later programs."""
    os.environ["DILASERVE_THREADS"] = "1"
    return live_cluster("--slots", 1, "--instances", "1x1", *options)


def measure_profile(path: Path) -> None:
    """Measure the latency profile of the demo model with one thread, as the instance of `one_instance` has it."""
    options = ("--threads", "1", "--max-tokens", "2048", "--dtype", "float32", "--repeats", "9", "--out", str(path))
    subprocess.run([sys.executable, "-m", "dilaserve", "profile", "--model", str(DEMO_MODEL), *options], check=True)


def is_ready(url: str) -> bool:
    """Whether the gateway at this URL reports that it is ready."""
    try:
        return httpx.get(f"{url}/ready", trust_env=False).is_success
    except httpx.TransportError:
        return False


def held_out_requests(output_tokens: int | None = None) -> list[LoadRequest]:
    """The demo model's held-out problems, with another output length if given."""
    rows = held_out(DEMO_MODEL)
    return [msgspec.structs.replace(row, output_tokens=output_tokens or row.output_tokens) for row in rows]


def unlearnt_requests(output_tokens: int | None = None) -> list[LoadRequest]:
    """The held-out problems from which the demo model's step predictor did not learn either."""
    return held_out_requests(output_tokens)[PREDICTOR_ROWS:]


def chat_body(prompt: str, **options: object) -> dict[str, object]:
    """The body of a chat completion with one user message."""
    return {"model": "demo", "messages": [{"role": "user", "content": prompt}], **options}


@asynccontextmanager
async def connected(nats_url: str) -> AsyncIterator[Bus]:
    """A connection to the cluster's bus during the body."""
    bus = await Bus.connect(nats_url, CELL, name="experiment")
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def subscribed(nats_url: str, handlers: Mapping[str, Callable[[Msg], None]]) -> AsyncIterator[None]:
    """Call each subject's handler with its messages, until all that arrived during the body are handled."""

    async def receive(handle: Callable[[Msg], None], msg: Msg) -> None:
        handle(msg)

    async with connected(nats_url) as bus:
        for subject, handle in handlers.items():
            await bus.nc.subscribe(subject, cb=partial(receive, handle))
        await bus.nc.flush()
        yield
        await bus.nc.flush()
