"""A steady load through HTTP, and what the bus says meanwhile: for experiments and tests that kill processes."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import psutil
from nats.aio.msg import Msg

from shared.bus.client import Bus, last_token
from shared.bus.codec import decode
from shared.messages.requests import Outcome
from shared.messages.stats import SchedulerStats

GIVE_UP_S = 150.0
BLOCK_LENGTH = 8  # short, so that answers have several blocks and so checkpoints


@dataclass(frozen=True, slots=True)
class FaultReply:
    """Units: seconds, of time.monotonic."""

    prompt: str
    request_id: str  # empty: it failed
    text: str
    sent_s: float
    ended_s: float


@dataclass(slots=True)
class FaultLoad:
    """So many clients, each sending its next request when it has the reply to the last."""

    replies: list[FaultReply] = field(default_factory=list)

    def failed(self) -> int:
        return sum(not reply.request_id for reply in self.replies)


@dataclass(slots=True)
class StatsWatch:
    """What has been heard on the bus."""

    outcomes: Counter[str] = field(default_factory=Counter)  # messages a request
    kept_steps: dict[str, int] = field(default_factory=dict)  # by request: steps that a scheduler since killed had done
    checkpoints: Counter[str] = field(default_factory=Counter)  # messages a request
    stats: list[SchedulerStats] = field(default_factory=list)

    def open_blocks(self) -> int:
        """Requests with a finished block that have not ended."""
        return len(self.checkpoints.keys() - self.outcomes.keys())


@asynccontextmanager
async def asking(url: str, prompts: Sequence[str], clients: int) -> AsyncIterator[FaultLoad]:
    """Keep asking while the body runs, then wait for the last replies."""
    load, numbers, stopped = FaultLoad(), itertools.count(), asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=GIVE_UP_S, trust_env=False) as http:

        async def one_client() -> None:
            while not stopped.is_set():
                load.replies.append(await _ask(http, prompts[next(numbers) % len(prompts)]))

        asked = [asyncio.ensure_future(one_client()) for _ in range(clients)]
        try:
            yield load
        finally:
            stopped.set()
            await asyncio.gather(*asked)


async def _ask(http: httpx.AsyncClient, prompt: str) -> FaultReply:
    sent_s = time.monotonic()
    message = {"role": "user", "content": prompt}
    body = {"model": "demo", "messages": [message], "max_tokens": 64, "block_length": BLOCK_LENGTH, "slo_ms": 60_000}
    try:
        answer = await http.post("/v1/chat/completions", json=body)
        told = answer.raise_for_status().json()
        text, name = told["choices"][0]["message"]["content"], told["dilaserve"]["request_id"]
    except httpx.HTTPError as error:
        name, text = "", repr(error)
    return FaultReply(prompt, name, text, sent_s, time.monotonic())


@asynccontextmanager
async def watching(nats_url: str) -> AsyncIterator[StatsWatch]:
    """Listen while the body runs."""
    watch, bus = StatsWatch(), await Bus.connect(nats_url, "cell0", name="watch")

    async def hear_outcome(msg: Msg) -> None:
        outcome = decode(msg.data, Outcome)
        watch.outcomes[outcome.request_id] += 1
        watch.kept_steps[outcome.request_id] = outcome.decisions.first_step if outcome.decisions else 0

    async def hear_checkpoint(msg: Msg) -> None:
        watch.checkpoints[last_token(msg.subject)] += 1

    async def hear_stats(msg: Msg) -> None:
        watch.stats.append(decode(msg.data, SchedulerStats))

    subjects = bus.subjects
    await bus.nc.subscribe(subjects.outcomes("*"), cb=hear_outcome)
    await bus.nc.subscribe(subjects.checkpoints("*"), cb=hear_checkpoint)
    await bus.nc.subscribe(subjects.stats("scheduler"), cb=hear_stats)
    try:
        await bus.nc.flush()
        yield watch
        await bus.nc.flush()
    finally:
        await bus.close()


@dataclass(frozen=True, slots=True)
class Kill:
    """What was killed, when, and what the scheduler had last said."""

    service: str
    at_s: float  # of time.monotonic
    seen: int  # messages of the scheduler before it
    before: SchedulerStats


async def kill_service(service: str, parent: psutil.Process, watch: StatsWatch) -> Kill:
    """kill -9 the first process of a service below `parent`, once requests are amid their blocks."""
    await until(lambda: bool(watch.stats) and watch.open_blocks() > 1, GIVE_UP_S)
    kill = Kill(service, time.monotonic(), len(watch.stats), watch.stats[-1])
    next(child for child in parent.children(recursive=True) if f"services.{service}" in child.cmdline()).kill()
    return kill


def recovered(kill: Kill, watch: StatsWatch, load: FaultLoad) -> bool:
    """Whether what was killed works again and requests sent since were served."""
    served = sum(reply.sent_s > kill.at_s for reply in load.replies) > 10
    since = watch.stats[kill.seen :]
    if not served or not since:
        return False
    match kill.service:
        case "scheduler":
            return since[-1].epoch > kill.before.epoch
        case "predictor":
            fallen = [stats for stats in since if stats.predictor_fallbacks > kill.before.predictor_fallbacks]
            return bool(fallen) and fallen[-1].predictions > fallen[0].predictions
        case _:
            names = {load.instance_id for load in kill.before.instances}
            now = {load.instance_id for load in since[-1].instances}
            return len(now) == len(names) and now != names


async def until(holds: Callable[[], bool], limit_s: float) -> None:
    """Raises: TimeoutError if it does not come to hold within the limit."""
    async with asyncio.timeout(limit_s):
        while not holds():  # noqa: ASYNC110  (what is looked at comes from other processes)
            await asyncio.sleep(0.05)
