"""The leading scheduler of a whole stack fails: another serves its requests."""

import asyncio
import signal
from collections.abc import Iterator

import httpx
import pytest

from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.target import leading_process
from shared.bus.users import BusUser
from tests.support.demo_questions import answer
from tests.support.stack import Stack, new_data_dir, running_stack
from tests.support.waiting import reached

REQUESTS = 20
LIMIT_S = 60.0
# A fixed threshold: the text of a request is independent of time and instance.
OPTIONS = ("--instances", "2x1", "--policy", "dilaserve", "--thresholds", "0.9", "--cache", "none", "--standby")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *OPTIONS) as running:
        yield running


def schedulers(stack: Stack) -> set[int]:
    return {process.pid for process in stack.programs("services.scheduler")}


def standbys(stack: Stack) -> int:
    """The number of times that a scheduler has begun to stand by."""
    return stack.log.read_text().count("standing by")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_standby_serves_the_requests_of_a_failed_leader(stack: Stack, fault: signal.Signals) -> None:
    nats_url = read_addresses(stack.data_dir).nats_urls[BusUser.OPERATOR]
    await reached(lambda: standbys(stack) > 0 and len(schedulers(stack)) == 2, LIMIT_S)
    leader = await leading_process(nats_url)
    [standby] = schedulers(stack) - {leader.pid}
    before = standbys(stack)
    async with httpx.AsyncClient(base_url=stack.url, timeout=110, limits=httpx.Limits(max_connections=200)) as http:
        expected = [await answer(http, i) for i in range(0, REQUESTS, 10)]
        load = [asyncio.ensure_future(answer(http, i)) for i in range(REQUESTS)]
        await asyncio.wait(load, return_when=asyncio.FIRST_COMPLETED)  # the load is running
        leader.send_signal(fault)
        texts = await asyncio.gather(*load)
        assert texts[::10] == expected
        leading = await leading_process(nats_url)
        assert leading.pid != leader.pid
        if fault is signal.SIGSTOP:  # a killed leader restarts, and may lead again
            assert leading.pid == standby
            leader.send_signal(signal.SIGCONT)
        await reached(lambda: standbys(stack) > before, LIMIT_S)  # the failed one, after its restart
        assert await answer(http, 0) == expected[0]
    assert await leading_process(nats_url) == leading
