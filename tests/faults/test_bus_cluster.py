"""A whole stack on three NATS servers serves on when the one that leads the stream of requests is killed."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.bus_servers import leaders
from experiments.live_cluster import SUBJECTS
from shared.bus.users import BusUser
from tests.support.demo_questions import answer
from tests.support.stack import Stack, new_data_dir, running_stack

REQUESTS = 10
# A fixed threshold: the text of a request is independent of time and instance.
OPTIONS = ("--instances", "2x1", "--policy", "dilaserve", "--thresholds", "0.9", "--cache", "none", "--nats-nodes", 3)


@pytest.fixture
def stack() -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *OPTIONS) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_requests_get_the_same_text_when_the_leader_of_the_bus_is_killed(stack: Stack) -> None:
    nats_url = read_addresses(stack.data_dir).nats_urls[BusUser.OPERATOR]
    leader = (await leaders(nats_url))[SUBJECTS.stream("REQUESTS")]
    [server] = [each for each in stack.programs("nats-server") if f"/{leader}/" in " ".join(each.cmdline())]
    async with httpx.AsyncClient(base_url=stack.url, timeout=150) as http:
        expected = [await answer(http, i) for i in range(REQUESTS)]
        load = [asyncio.ensure_future(answer(http, i)) for i in range(REQUESTS)]
        await asyncio.wait(load, return_when=asyncio.FIRST_COMPLETED)  # the load is running
        server.kill()
        assert await asyncio.gather(*load) == expected
        assert await answer(http, 0) == expected[0]
