"""The embedded cluster replaces its instances while it serves."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from dilaserve.stack.data_dir import read_addresses
from shared.bus.client import Bus
from shared.bus.plan_history import read_plans
from shared.messages.plans import PlanRecord, PlanState
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile, write_profile
from tests.support.stack import Stack, dilaserve, new_data_dir, running_stack
from tests.support.waiting import until

LIMIT_S = 90.0
pytestmark = pytest.mark.timeout(400)  # processes start many times, and other tests run beside
LIGHT_RPS, HEAVY_RPS = 1.0, 4.0

# What is planned with, whatever this machine does. A request takes 32 steps of about 50 tokens: with these, 0.45 s at
# TP-1 and 0.42 s at TP-2, and two TP-1 serve 5.8 requests a second, one TP-2 3.1.
PROFILE = LatencyProfile.from_rows((tp, 64, kind, s) for tp, s in ((1, 0.014), (2, 0.013)) for kind in StepKind)
SLO_MS = 500
SETTINGS = {"INTERVAL_S": "3", "WINDOW_S": "3", "BATCH_SIZES": "64", "DRAIN_S": "2"}


class Load:
    """Requests at a steady rate, each of them followed to its reply."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.rps = LIGHT_RPS
        self.statuses: Counter[int | str] = Counter()

    async def run(self) -> None:
        """Until cancelled; then wait for what was sent."""
        sent: set[asyncio.Task[None]] = set()
        async with httpx.AsyncClient(base_url=self._url, timeout=LIMIT_S, trust_env=False) as client:
            try:
                next_s = time.monotonic()
                while True:
                    sent.add(asyncio.create_task(self._ask(client)))
                    next_s += 1 / self.rps
                    await asyncio.sleep(next_s - time.monotonic())
            finally:
                await asyncio.gather(*sent)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        body = {"model": "tiny-llada", "prompt": "how many apples?", "max_tokens": 32, "slo_ms": SLO_MS}
        try:
            self.statuses[(await client.post("/v1/completions", json=body)).status_code] += 1
        except httpx.HTTPError as error:
            self.statuses[repr(error)] += 1


@asynccontextmanager
async def under_load(stack: Stack) -> AsyncIterator[tuple[Load, Bus]]:
    """Load on the gateway, and a connection to the bus. At the end all requests sent have their replies."""
    bus = await Bus.connect(read_addresses(stack.data_dir).nats_url, "cell0", name="test")
    load = Load(stack.url)
    running = asyncio.create_task(load.run())
    try:
        yield load, bus
    finally:
        running.cancel()
        await asyncio.wait([running])
        await bus.close()


def ended(bus: Bus, number: int) -> Callable[[], Awaitable[bool]]:
    """Whether so many plans have been carried out."""

    async def holds() -> bool:
        return len([plan for plan in await changes(bus) if plan.state is not PlanState.RUNNING]) >= number

    return holds


async def changes(bus: Bus) -> list[PlanRecord]:
    """The plans that changed something, the oldest first."""
    return [plan for plan in reversed(await read_plans(bus, 100)) if plan.state is not PlanState.STAYED]


@contextmanager
def reconfiguring_stack(model: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """One TP-2 instance on two slots, planned anew every three seconds: each time in a process that imports Pyomo."""
    write_profile(directory / "profile.csv", PROFILE)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"DILASERVE_{name}", value)
    options = ["--instances", "1x2", "--slots", "2", "--reconfigure", "--profile", directory / "profile.csv"]
    fixed = ["--policy", "fixed", "--thresholds", "0.9", "--cache", "none"]
    with new_data_dir() as data_dir, running_stack(model, data_dir, *options, *fixed) as stack:
        yield stack


async def test_more_load_turns_one_tp_2_into_two_tp_1_and_less_turns_them_back(
    tiny_checkpoint_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reconfiguring_stack(tiny_checkpoint_dir, tmp_path, monkeypatch) as stack:
        async with under_load(stack) as (load, bus):
            load.rps = HEAVY_RPS
            await until(ended(bus, 1), LIMIT_S)
            load.rps = LIGHT_RPS
            await until(ended(bus, 2), LIMIT_S)
            first, second = (await changes(bus))[:2]
        assert set(load.statuses) == {200}, load.statuses
        assert [[spec.gpus for spec in plan.target] for plan in (first, second)] == [[(0,), (1,)], [(0, 1)]]
        assert {first.state, second.state} == {PlanState.DONE}, [first.events, second.events]
        assert stack.stop() == 0


@pytest.mark.slow
async def test_a_killed_reconfigurator_and_a_killed_worker_do_not_keep_it_from_its_target(
    tiny_checkpoint_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reconfiguring_stack(tiny_checkpoint_dir, tmp_path, monkeypatch) as stack:
        async with under_load(stack) as (load, bus):
            load.rps = HEAVY_RPS
            await until(under_way(bus), LIMIT_S)
            stack.program("services.reconfigurator").kill()
            await until(partial(runs, stack, 1), LIMIT_S)
            stack.program("services.worker").kill()
            await until(ended(bus, 1), LIMIT_S)
            [plan] = await changes(bus)
        assert set(load.statuses) == {200}, load.statuses
        assert plan.state is PlanState.DONE, plan.events
        assert stack.stop() == 0


async def runs(stack: Stack, tp_degree: int) -> bool:
    """Whether an instance of this TP degree serves."""
    report = json.loads(dilaserve("status", "--json", "--data-dir", stack.data_dir).stdout)
    return any(i["tp_degree"] == tp_degree and i["state"] == "ready" for i in report["instances"])


def under_way(bus: Bus) -> Callable[[], Awaitable[bool]]:
    """Whether a plan is being carried out."""

    async def holds() -> bool:
        return any(plan.state is PlanState.RUNNING for plan in await changes(bus))

    return holds
