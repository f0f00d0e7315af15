"""`dilaserve up --gateways 2`: one of them is drained and replaced under load, then the other."""

import asyncio
import signal

import httpx
import psutil
import pytest

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.load import closed_loop
from experiments.live_cluster import held_out_requests
from tests.support.stack import new_data_dir, running_stack
from tests.support.waiting import reached

LIMIT_S = 120.0
CLIENTS = 2  # that keep their connection, and as many that open one for each request
GATEWAY = "services.gateway"
PROMPTS = [row.prompt for row in held_out_requests()[:10]]


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_no_request_fails_while_gateways_are_replaced() -> None:
    options = ("--instances", "1x1", "--gateways", "2")
    with new_data_dir() as data_dir, running_stack(DEMO_MODEL, data_dir, *options) as stack:
        first = stack.programs(GATEWAY)
        async with (
            httpx.AsyncClient(base_url=stack.url, timeout=LIMIT_S) as keeping,
            httpx.AsyncClient(base_url=stack.url, timeout=LIMIT_S, headers={"Connection": "close"}) as closing,
            closed_loop(keeping, PROMPTS, CLIENTS) as answers,
            closed_loop(closing, PROMPTS, CLIENTS) as others,
        ):

            async def further() -> None:
                wanted = len(answers) + 2 * CLIENTS, len(others) + 2 * CLIENTS
                await reached(lambda: len(answers) >= wanted[0] and len(others) >= wanted[1], LIMIT_S)

            for gateway in first:
                await further()
                gateway.send_signal(signal.SIGTERM)
                await asyncio.to_thread(psutil.wait_procs, [gateway], LIMIT_S)
                await further()
                await reached(lambda: len(stack.programs(GATEWAY)) == 2, LIMIT_S)
        assert len(first) == 2
        assert not {gateway.pid for gateway in first} & {gateway.pid for gateway in stack.programs(GATEWAY)}
        assert [answer.errors for answer in answers + others if answer.errors or answer.text is None] == []
        assert stack.stop() == 0
