"""A stack whose reconfigurator replaces its instances under a changing load."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from dilaserve.stack.data_dir import read_addresses
from shared.bus.client import Bus
from shared.bus.users import BusUser
from shared.messages.steps import StepKind
from shared.profile import LatencyProfile, write_profile
from tests.support.stack import Stack, new_data_dir, running_stack

LIMIT_S = 90.0
LIGHT_RPS, HEAVY_RPS = 1.0, 4.0

# The profile that the planner uses on every machine. A request takes 32 steps of about 50 tokens, which is 0.45 s at
# TP-1 and 0.42 s at TP-2; two TP-1 instances serve 5.8 requests per second, one TP-2 instance 3.1.
PROFILE = LatencyProfile.from_rows((tp, 64, kind, s) for tp, s in ((1, 0.014), (2, 0.013)) for kind in StepKind)
SLO_MS = 500
SETTINGS = {"INTERVAL_S": "3", "WINDOW_S": "3", "BATCH_SIZES": "64", "DRAIN_S": "2"}


class Load:
    """Sends requests at a steady rate and counts the statuses of their replies."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.rps = LIGHT_RPS
        self.statuses: Counter[int | str] = Counter()

    async def run(self) -> None:
        """Send until cancelled, then wait for the replies of all requests sent."""
        sent: set[asyncio.Task[None]] = set()
        async with httpx.AsyncClient(base_url=self._url, timeout=LIMIT_S, trust_env=False) as client:
            try:
                next_s = time.monotonic()
                while True:
                    sent.add(asyncio.create_task(self._send(client)))
                    next_s += 1 / self.rps
                    await asyncio.sleep(next_s - time.monotonic())
            finally:
                await asyncio.gather(*sent)

    async def _send(self, client: httpx.AsyncClient) -> None:
        body = {"model": "tiny-llada", "prompt": "how many apples?", "max_tokens": 32, "slo_ms": SLO_MS}
        try:
            self.statuses[(await client.post("/v1/completions", json=body)).status_code] += 1
        except httpx.HTTPError as error:
            self.statuses[repr(error)] += 1


@asynccontextmanager
async def under_load(stack: Stack) -> AsyncIterator[tuple[Load, Bus]]:
    """Put load on the gateway and connect to the bus. On exit every request sent has its reply."""
    bus = await Bus.connect(read_addresses(stack.data_dir).nats_urls[BusUser.OPERATOR], "cell0", name="test")
    load = Load(stack.url)
    running = asyncio.create_task(load.run())
    try:
        yield load, bus
    finally:
        running.cancel()
        await asyncio.wait([running])
        await bus.close()


@contextmanager
def reconfiguring_stack(model: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """One TP-2 instance on two GPU slots; the reconfigurator plans every three seconds."""
    write_profile(directory / "profile.csv", PROFILE)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"DILASERVE_{name}", value)
    options = ["--instances", "1x2", "--slots", "2", "--reconfigure", "--profile", directory / "profile.csv"]
    fixed = ["--policy", "fixed", "--thresholds", "0.9", "--cache", "none"]
    with new_data_dir() as data_dir, running_stack(model, data_dir, *options, *fixed) as stack:
        yield stack
