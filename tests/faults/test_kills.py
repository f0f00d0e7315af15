"""Kills processes of a whole stack under load: each accepted request still ends, with the text it has without kills."""

import asyncio
from collections.abc import Iterator
from functools import partial

import httpx
import psutil
import pytest

from dilaserve.load.workload import read_requests
from dilaserve.stack.data_dir import read_addresses
from dilaserve.stack.up_options import DEMO_MODEL
from experiments import fault_load
from experiments.fault_load import bus_monitor, closed_loop, kill_service, recovered
from shared.bus.users import BusUser
from tests.support.demo_questions import answer
from tests.support.stack import Stack, new_data_dir, running_stack
from tests.support.waiting import until

REQUESTS = 40
CLIENTS, PROMPTS = 4, 10
LIMIT_S = 60.0
# A fixed threshold: the text of a request is independent of time and instance.
OPTIONS = ("--instances", "2x1", "--policy", "dilaserve", "--thresholds", "0.9", "--cache", "none")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *OPTIONS) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_no_request_is_lost_when_the_bus_is_killed_under_load(stack: Stack) -> None:
    program = "nats-server"

    def pids() -> set[int]:
        return {process.pid for process in stack.programs(program)}

    async with httpx.AsyncClient(base_url=stack.url, timeout=110, limits=httpx.Limits(max_connections=200)) as http:
        expected = [await answer(http, i) for i in range(0, REQUESTS, 10)]
        before = pids()
        load = [asyncio.ensure_future(answer(http, i)) for i in range(REQUESTS)]
        await asyncio.wait(load, return_when=asyncio.FIRST_COMPLETED)  # the load is running
        stack.program(program).kill()
        texts = await asyncio.gather(*load)
        assert texts[::10] == expected

        async def restarted() -> bool:
            return len(pids()) == len(before) and pids() != before

        await until(restarted)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_killed_services_lose_and_repeat_nothing_and_checkpoints_are_resumed(stack: Stack) -> None:
    prompts = [row.prompt for row in read_requests(DEMO_MODEL / "heldout.jsonl")[:PROMPTS]]
    parent = psutil.Process(stack.process.pid)
    async with (
        bus_monitor(read_addresses(stack.data_dir).nats_urls[BusUser.OPERATOR]) as monitor,
        closed_loop(stack.url, prompts, CLIENTS) as replies,
    ):
        for victim in ("predictor", "worker", "scheduler"):
            kill = await kill_service(victim, parent, monitor)
            await fault_load.until(partial(recovered, kill, monitor, replies), LIMIT_S)
    assert all(reply.request_id for reply in replies)
    texts = {(reply.prompt, reply.text) for reply in replies}
    assert len(texts) == PROMPTS
    assert {monitor.outcomes[reply.request_id] for reply in replies} == {1}
    assert sum(monitor.kept_steps.values()) > 0
