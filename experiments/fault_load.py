"""A steady load over HTTP and a monitor of the bus, for experiments and tests that kill processes."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import psutil
from nats.aio.msg import Msg

from experiments.live_cluster import SUBJECTS, chat_body, connected, subscribed
from services.scheduler.io.lease import KEY as LEASE_KEY
from shared.bus.client import last_token
from shared.bus.codec import decode
from shared.messages.requests import Outcome
from shared.messages.stats import SchedulerStats

TIMEOUT_S = 150.0
BLOCK_LENGTH = 8  # tokens; short, so that outputs have several blocks and so checkpoints


@dataclass(frozen=True, slots=True)
class FaultReply:
    """Times are of time.monotonic."""

    prompt: str
    request_id: str  # empty: the request failed
    text: str
    sent_s: float
    ended_s: float

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.sent_s


@dataclass(slots=True)
class BusMonitor:
    """The outcomes, checkpoints and scheduler stats received from the bus."""

    outcomes: Counter[str] = field(default_factory=Counter)  # messages per request
    ends: dict[str, set[tuple[str, str]]] = field(default_factory=dict)  # by request: status and text of its outcomes
    unverified: set[str] = field(default_factory=set)  # requests whose outcome is marked
    kept_steps: dict[str, int] = field(default_factory=dict)  # by request: steps run by a scheduler that was killed
    checkpoints: Counter[str] = field(default_factory=Counter)  # messages per request
    stats: list[SchedulerStats] = field(default_factory=list)

    def open_blocks(self) -> int:
        """The number of requests with a finished block and no outcome."""
        return len(self.checkpoints.keys() - self.outcomes.keys())

    def on_outcome(self, msg: Msg) -> None:
        outcome = decode(msg.data, Outcome)
        self.outcomes[outcome.request_id] += 1
        self.ends.setdefault(outcome.request_id, set()).add((outcome.status.value, outcome.text))
        if outcome.unverified:
            self.unverified.add(outcome.request_id)
        self.kept_steps[outcome.request_id] = outcome.decisions.first_step if outcome.decisions else 0

    def on_checkpoint(self, msg: Msg) -> None:
        self.checkpoints[last_token(msg.subject)] += 1

    def on_stats(self, msg: Msg) -> None:
        self.stats.append(decode(msg.data, SchedulerStats))


@asynccontextmanager
async def closed_loop(url: str, prompts: Sequence[str], clients: int) -> AsyncIterator[list[FaultReply]]:
    """During the body each client sends its next request when it has a reply; then wait for the last replies."""
    replies: list[FaultReply] = []
    numbers, stopped = itertools.count(), asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as http:

        async def one_client() -> None:
            while not stopped.is_set():
                replies.append(await _send(http, prompts[next(numbers) % len(prompts)]))

        tasks = [asyncio.ensure_future(one_client()) for _ in range(clients)]
        try:
            yield replies
        finally:
            stopped.set()
            await asyncio.gather(*tasks)


async def _send(http: httpx.AsyncClient, prompt: str) -> FaultReply:
    sent_s = time.monotonic()
    body = chat_body(prompt, max_tokens=64, block_length=BLOCK_LENGTH, slo_ms=60_000)
    try:
        reply = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
        text, request_id = reply["choices"][0]["message"]["content"], reply["dilaserve"]["request_id"]
    except httpx.HTTPError as error:
        request_id, text = "", repr(error)
    return FaultReply(prompt, request_id, text, sent_s, time.monotonic())


@asynccontextmanager
async def bus_monitor(nats_url: str) -> AsyncIterator[BusMonitor]:
    """Monitor the bus during the body."""
    monitor = BusMonitor()
    handlers = {
        SUBJECTS.outcomes("*"): monitor.on_outcome,
        SUBJECTS.checkpoints("*"): monitor.on_checkpoint,
        SUBJECTS.stats("scheduler"): monitor.on_stats,
    }
    async with subscribed(nats_url, handlers):
        yield monitor


@dataclass(frozen=True, slots=True)
class Kill:
    """A service that was killed, the time, and the scheduler's last stats before."""

    service: str
    at_s: float  # by time.monotonic
    stats_before: int  # number of the scheduler's stats messages
    last_stats: SchedulerStats


async def kill_service(service: str, parent: psutil.Process, monitor: BusMonitor) -> Kill:
    """SIGKILL the first process of a service below `parent`, once at least two requests are between blocks."""
    await until(lambda: bool(monitor.stats) and monitor.open_blocks() > 1, TIMEOUT_S)
    kill = Kill(service, time.monotonic(), len(monitor.stats), monitor.stats[-1])
    next(child for child in parent.children(recursive=True) if f"services.{service}" in child.cmdline()).kill()
    return kill


def processes_of(name: str) -> list[psutil.Process]:
    """The processes below this one of a service, of `nats-server` or of `postgres`, without their children of the same
    name."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            parent = child.parent()
            is_part = child.name() == name and parent is not None and parent.name() == name
            if not is_part and (child.name() == name or f"services.{name}" in child.cmdline()):
                found.append(child)
    return found


async def leading_process(nats_url: str) -> psutil.Process:
    """The scheduler of this machine that holds the lease."""
    async with connected(nats_url) as bus:
        lease = await (await bus.bucket(bus.subjects.leases_bucket)).get(LEASE_KEY)
    return psutil.Process(int((lease.value or b"").rpartition(b":")[2]))


def recovered(kill: Kill, monitor: BusMonitor, replies: Sequence[FaultReply]) -> bool:
    """Whether the service works again and more than ten requests sent since the kill have their reply."""
    served = sum(reply.sent_s > kill.at_s for reply in replies) > 10
    since = monitor.stats[kill.stats_before :]
    if not served or not since:
        return False
    match kill.service:
        case "scheduler":
            return since[-1].epoch > kill.last_stats.epoch
        case "predictor":
            failing = [stats for stats in since if stats.predictor_fallbacks > kill.last_stats.predictor_fallbacks]
            return bool(failing) and failing[-1].predictions > failing[0].predictions
        case _:
            before = {instance.instance_id for instance in kill.last_stats.instances}
            now = {instance.instance_id for instance in since[-1].instances}
            return len(now) == len(before) and now != before


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Raises: TimeoutError if the condition does not become true within the limit."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  (other processes change it)
            await asyncio.sleep(0.05)
