"""Processes of a whole stack killed under load: every accepted request still ends, with the text it gets in peace."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from dilaserve.commands.up import DEMO_MODEL
from tests.e2e.test_serving import ask
from tests.support.stack import FIXED, Stack, new_data_dir, running_stack
from tests.support.waiting import until

REQUESTS = 60


@pytest.fixture
def stack() -> Iterator[Stack]:
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *FIXED) as running:
        yield running


@pytest.mark.timeout(180)
@pytest.mark.parametrize("program", ["services.worker", "services.scheduler", "nats-server"])
async def test_no_request_is_lost_when_a_process_is_killed_under_load(stack: Stack, program: str) -> None:
    def pids() -> set[int]:
        return {process.pid for process in stack.programs(program)}

    async with httpx.AsyncClient(base_url=stack.url, timeout=110, limits=httpx.Limits(max_connections=200)) as http:
        expected = [await ask(http, i) for i in range(0, REQUESTS, 10)]
        before = pids()
        load = [asyncio.ensure_future(ask(http, i)) for i in range(REQUESTS)]
        await asyncio.wait(load, return_when=asyncio.FIRST_COMPLETED)  # the load is under way
        stack.program(program).kill()
        texts = await asyncio.gather(*load)
        assert texts[::10] == expected

        async def restarted() -> bool:
            return len(pids()) == len(before) and pids() != before

        await until(restarted)
